#include "csrc/planning/lane_weights.h"

#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

using Weights = std::vector<int>;

constexpr double kBusy = 1;    // bytes are on their way all the time
constexpr double kIdle = 0.2;  // the lane mostly waits for something else

/// For lanes of these speeds and weights; further lanes are not in use.
std::optional<Weights> weights_of(const std::vector<double>& speeds,
                                  const Weights& current,
                                  double busy = kBusy) {
  Parameters parameters;
  parameters.lanes = static_cast<std::uint32_t>(speeds.size());
  std::array<LaneRecord, kMaxLanes> records{};
  for (std::size_t lane = 0; lane < speeds.size(); ++lane) {
    records[lane] = {7 * speeds[lane], 7, 7 * busy};
    parameters.weights[lane] = static_cast<std::uint8_t>(current[lane]);
  }
  const auto better = better_weights(records, parameters);
  if (!better) {
    return std::nullopt;
  }
  for (std::size_t lane = speeds.size(); lane < kMaxLanes; ++lane) {
    EXPECT_EQ(kFullWeight, (*better)[lane]) << lane;
  }
  return Weights(better->begin(), better->begin() + parameters.lanes);
}

TEST(BetterWeights, EqualSpeedsNeedNone) {
  EXPECT_FALSE(weights_of({5, 5, 5, 5}, {16, 16, 16, 16}));
  EXPECT_FALSE(weights_of({3}, {16}));
}

TEST(BetterWeights, ALaneOfAQuarterOfTheSpeedGetsAQuarter) {
  EXPECT_EQ(weights_of({8, 2, 8, 8}, {16, 16, 16, 16}), (Weights{16, 4, 16, 16}));
  EXPECT_EQ(weights_of({8, 2}, {16, 16}), (Weights{16, 4}));
  EXPECT_EQ(weights_of({1e9, 1}, {16, 16}), (Weights{16, 1}));
}

TEST(BetterWeights, ALaneThatDoesNotWaitForTheNetworkKeepsItsWeight) {
  EXPECT_FALSE(weights_of({8, 2, 8, 8}, {16, 16, 16, 16}, kIdle));
  EXPECT_FALSE(weights_of({8, 1, 8, 8}, {16, 4, 16, 16}, kIdle));
}

TEST(BetterWeights, AnyRankMayGiveALaneItsWeightBack) {
  EXPECT_EQ(weights_of({8, 8, 8, 8}, {16, 4, 16, 16}, kIdle), (Weights{16, 16, 16, 16}));
}

TEST(BetterWeights, SmallDifferencesAreNoise) {
  EXPECT_FALSE(weights_of({8, 5.5, 7, 8}, {16, 16, 16, 16}));
}

TEST(BetterWeights, OneFastLaneDoesNotMakeTheOthersSlow) {
  EXPECT_FALSE(weights_of({8, 8, 80, 8}, {16, 16, 16, 16}));
}

TEST(BetterWeights, WeightsThatFitAreKept) {
  for (const double busy : {kBusy, kIdle}) {
    for (const double speed : {0.2, 0.25, 0.3}) {
      EXPECT_FALSE(weights_of({1, speed, 1, 1}, {16, 4, 16, 16}, busy)) << speed;
    }
  }
}

TEST(BetterWeights, WeightsThatAreFarOffAreCorrectedBothWays) {
  EXPECT_EQ(weights_of({8, 1, 8, 8}, {16, 4, 16, 16}), (Weights{16, 2, 16, 16}));
  EXPECT_EQ(weights_of({2, 8, 8, 8}, {16, 4, 16, 16}), (Weights{4, 16, 16, 16}));
}

TEST(BetterWeights, WhatTheyGiveIsStable) {
  for (int slow = 1; slow < 100; ++slow) {
    const std::vector<double> speeds = {100, 100, static_cast<double>(slow), 100};
    const auto weights = weights_of(speeds, {16, 16, 16, 16});
    if (weights) {
      EXPECT_FALSE(weights_of(speeds, *weights)) << slow;
    } else {
      EXPECT_GE(slow, 60);
    }
  }
}

}  // namespace
}  // namespace aiacc
