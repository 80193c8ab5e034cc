#include "csrc/planning/lane_weights.h"

#include <algorithm>
#include <cmath>

namespace aiacc {
namespace {

/// What a lane of `speed` shall weigh where the typical one has `typical`.
std::uint8_t weight_of(double speed, double typical) {
  const double share = speed / typical;
  if (share * 3 >= 2) {
    return kFullWeight;
  }
  return static_cast<std::uint8_t>(std::max(std::lround(share * kFullWeight), 1L));
}

}  // namespace

std::optional<LaneWeights> better_weights(const std::array<LaneRecord, kMaxLanes>& lanes,
                                          const Parameters& current) {
  std::array<double, kMaxLanes> speeds{};
  for (std::uint32_t lane = 0; lane < current.lanes; ++lane) {
    speeds[lane] = lanes[lane].bytes / lanes[lane].ran_s;
  }
  std::array<double, kMaxLanes> sorted = speeds;
  const auto middle = sorted.begin() + current.lanes / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + current.lanes);
  LaneWeights weights = equal_weights();
  bool better = false;
  for (std::uint32_t lane = 0; lane < current.lanes; ++lane) {
    weights[lane] = weight_of(speeds[lane], *middle);
    if (2 * lanes[lane].sent_s < lanes[lane].ran_s) {
      weights[lane] = std::max(weights[lane], current.weights[lane]);
    }
    const int wanted = weights[lane];
    const int given = current.weights[lane];
    better = better || wanted * 3 < given * 2 || given * 3 < wanted * 2;
  }
  return better ? std::optional(weights) : std::nullopt;
}

}  // namespace aiacc
