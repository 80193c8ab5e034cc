#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aiacc {

/// What the planner may be told to change during a job. All ranks use the same epoch at any time:
/// the number travels in every round and a proposal takes effect at the end of the round that
/// carried it.
struct Parameters {
  std::uint32_t epoch = 0;
  std::uint64_t unit_bytes = 1 << 20;  ///< target size of one engine operation
  std::uint32_t lanes = 1;             ///< lanes in use, 1 .. the engine's
};

/// The parameters after a round that carried `proposals`, in rank order. Pure.
///
/// Every proposal counts as made for the epoch after `current`; the lowest rank's wins, so that
/// all ranks choose alike. A proposal for another epoch is stale and is dropped.
Parameters next_parameters(const Parameters& current, const std::vector<Parameters>& proposals);

}  // namespace aiacc
