#pragma once

#include <array>
#include <optional>

#include "csrc/planning/parameters.h"

namespace aiacc {

/// What one lane did while it was watched.
struct LaneRecord {
  double bytes = 0;   ///< of tensors that it reduced
  double ran_s = 0;   ///< how long it worked on them
  double sent_s = 0;  ///< how long bytes of this rank were on their way meanwhile
};

/// Weights that suit what the lanes in use did, if those of `current` are far from them; else
/// nothing, so that weights do not follow noise. Pure. `bytes` and `ran_s` are positive.
///
/// A lane's share is its speed in relation to that of the typical lane, the upper median of all.
/// Only a lane below two thirds of that gets less than full weight, and weights change only if some
/// lane's is wrong by more than half. Weight is taken from a lane only by a rank whose own bytes
/// were on their way for at least half of the time: otherwise it is not the network that is slow
/// here, and less work for one lane would not help the others.
std::optional<LaneWeights> better_weights(const std::array<LaneRecord, kMaxLanes>& lanes,
                                          const Parameters& current);

}  // namespace aiacc
