#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace aiacc {

/// More lanes than any engine has (AIACC_LANES).
inline constexpr std::size_t kMaxLanes = 64;

/// Weight of a lane that is as fast as any.
inline constexpr std::uint8_t kFullWeight = 16;

/// By lane, 1 .. kFullWeight: what share of bytes it gets in relation to the others.
using LaneWeights = std::array<std::uint8_t, kMaxLanes>;

constexpr LaneWeights equal_weights() {
  LaneWeights weights{};
  for (std::size_t lane = 0; lane < kMaxLanes; ++lane) {
    weights[lane] = kFullWeight;
  }
  return weights;
}

/// How an all-reduce goes, where an engine has several ways: round a ring is best for bandwidth,
/// along a tree for latency among many ranks.
enum class Algorithm : std::uint8_t { kAny = 0, kRing = 1, kTree = 2 };
inline constexpr int kAlgorithms = 3;

/// "auto", "ring", "tree"
const char* name_of(Algorithm algorithm);
/// Its inverse. Throws Error(kInvalidArgument) for another word.
Algorithm algorithm_from(const std::string& name);

/// What the planner may be told to change during a job. All ranks use the same epoch at any time:
/// the number travels in every round and a proposal takes effect at the end of the round that
/// carried it.
struct Parameters {
  std::uint32_t epoch = 0;
  std::uint64_t unit_bytes = 1 << 20;  ///< target size of one engine operation
  std::uint32_t lanes = 1;             ///< lanes in use, 1 .. the engine's
  LaneWeights weights = equal_weights();
  Algorithm algorithm = Algorithm::kAny;  ///< of all-reduces on GPUs
  /// The target size for an engine for GPUs, which pays more for every operation than sockets do.
  std::uint64_t gpu_unit_bytes = 32 << 20;
};

/// The parameters after a round that carried `proposals`, in rank order. Pure.
///
/// Every proposal counts as made for the epoch after `current`; the lowest rank's wins, so that
/// all ranks choose alike. A proposal for another epoch is stale and is dropped.
Parameters next_parameters(const Parameters& current, const std::vector<Parameters>& proposals);

/// Throws Error(kInvalidArgument) unless both sizes of units are positive, lanes is 1 ..
/// `engine_lanes` and every weight is 1 .. kFullWeight.
void check_parameters(const Parameters& parameters, std::uint32_t engine_lanes = kMaxLanes);

}  // namespace aiacc
