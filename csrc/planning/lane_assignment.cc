#include "csrc/planning/lane_assignment.h"

#include "csrc/base/error.h"

namespace aiacc {

std::uint32_t LaneLoads::assign(std::uint64_t bytes, const Parameters& parameters) {
  AIACC_CHECK(parameters.lanes > 0 && parameters.lanes <= kMaxLanes);
  if (epoch_ != parameters.epoch) {
    epoch_ = parameters.epoch;
    clear();
  }
  std::uint32_t best = 0;
  std::uint64_t soonest = 0;
  for (std::uint32_t i = 0; i < parameters.lanes; ++i) {
    const std::uint32_t lane = (first_ + i) % parameters.lanes;
    const std::uint64_t finish =
        finish_[lane] + bytes * kFullWeight / std::uint64_t{parameters.weights[lane]};
    if (i == 0 || finish < soonest) {
      best = lane;
      soonest = finish;
    }
  }
  finish_[best] = soonest;
  return best;
}

}  // namespace aiacc
