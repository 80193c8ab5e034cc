#pragma once

#include <array>
#include <cstdint>

#include "csrc/planning/parameters.h"

namespace aiacc {

/// Assigns units to lanes: each goes to the lane that would finish it first if lanes moved bytes in
/// proportion to their weights.
///
/// A replicated state machine: it knows the bytes that it gave to the lanes since `clear`, not how
/// far they have come. So it decides alike on all ranks that make the same calls, with no message,
/// where "whichever lane is free" would not. Greedy list scheduling (R. L. Graham, 1969): the
/// last lane is through at most one unit, at the mean speed of the lanes, later than it would be if
/// bytes could be spread at will.
class LaneLoads {
 public:
  /// `first` is the lane that is preferred when several are equally good, mod the lanes in use.
  explicit LaneLoads(std::uint32_t first = 0) : first_(first) {}

  /// Nothing is under way in any lane, on any rank.
  void clear() { finish_.fill(0); }

  /// The lane for a unit of `bytes`, which counts as given to it: one of the first `most` lanes
  /// from the preferred one on. A new epoch starts from nothing: other lanes may be in use. Pure
  /// but for its own state; allocates nothing.
  std::uint32_t assign(std::uint64_t bytes,
                       const Parameters& parameters,
                       std::uint32_t most = kMaxLanes);

  /// Counts a unit of `bytes` as given to the one lane of `lanes`, those of the engine, that units
  /// of its kind always take, whatever lanes are in use. Returns it.
  std::uint32_t pin(std::uint64_t bytes, const Parameters& parameters, std::uint32_t lanes);

 private:
  void enter(const Parameters& parameters);

  std::uint32_t first_;
  std::uint32_t epoch_ = 0;
  /// When each lane is through with what it was given, in byte times of a lane of full weight.
  std::array<std::uint64_t, kMaxLanes> finish_{};
};

}  // namespace aiacc
