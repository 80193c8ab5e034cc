#include "csrc/planning/lane_assignment.h"

#include <algorithm>

#include "csrc/base/error.h"

namespace aiacc {

namespace {

std::uint64_t time_of(std::uint64_t bytes, const Parameters& parameters, std::uint32_t lane) {
  return bytes * kFullWeight / std::uint64_t{parameters.weights[lane]};
}

}  // namespace

void LaneLoads::enter(const Parameters& parameters) {
  AIACC_CHECK(parameters.lanes > 0 && parameters.lanes <= kMaxLanes);
  if (epoch_ != parameters.epoch) {
    epoch_ = parameters.epoch;
    clear();
  }
}

std::uint32_t LaneLoads::pin(std::uint64_t bytes,
                             const Parameters& parameters,
                             std::uint32_t lanes) {
  AIACC_CHECK(lanes > 0);
  enter(parameters);
  const std::uint32_t lane = first_ % lanes;
  if (lane < parameters.lanes) {
    finish_[lane] += time_of(bytes, parameters, lane);
  }
  return lane;
}

std::uint32_t LaneLoads::assign(std::uint64_t bytes,
                                const Parameters& parameters,
                                std::uint32_t most) {
  AIACC_CHECK(most > 0);
  enter(parameters);
  std::uint32_t best = 0;
  std::uint64_t soonest = 0;
  for (std::uint32_t i = 0; i < std::min(parameters.lanes, most); ++i) {
    const std::uint32_t lane = (first_ + i) % parameters.lanes;
    const std::uint64_t finish = finish_[lane] + time_of(bytes, parameters, lane);
    if (i == 0 || finish < soonest) {
      best = lane;
      soonest = finish;
    }
  }
  finish_[best] = soonest;
  return best;
}

}  // namespace aiacc
