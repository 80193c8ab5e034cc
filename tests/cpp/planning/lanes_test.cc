#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/planning/lane_assignment.h"
#include "csrc/planning/lane_weights.h"

namespace aiacc {
namespace {

struct Case {
  Parameters parameters;
  std::vector<std::uint64_t> units;
};

Case random_case(std::uint32_t seed, bool weighted) {
  std::mt19937_64 random(seed);
  Case result;
  result.parameters.lanes = static_cast<std::uint32_t>(1 + random() % 9);
  if (weighted) {
    for (std::uint8_t& weight : result.parameters.weights) {
      weight = static_cast<std::uint8_t>(1 + random() % kFullWeight);
    }
  }
  const std::size_t count = random() % 200;
  for (std::size_t i = 0; i < count; ++i) {
    result.units.push_back(1 + random() % (random() % 5 == 0 ? 64 << 20 : 1 << 20));
  }
  return result;
}

/// Bytes by lane.
std::vector<std::uint64_t> assigned(LaneLoads& loads, const Case& c) {
  std::vector<std::uint64_t> bytes(c.parameters.lanes, 0);
  for (const std::uint64_t unit : c.units) {
    bytes.at(loads.assign(unit, c.parameters)) += unit;
  }
  return bytes;
}

TEST(LaneLoads, NoLaneIsThroughMuchLaterThanItsShareTakes) {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const Case c = random_case(seed, seed % 2 == 1);
    LaneLoads loads(seed);
    const auto bytes = assigned(loads, c);
    const auto total = std::accumulate(c.units.begin(), c.units.end(), 0.0);
    const auto largest =
        c.units.empty() ? 0.0
                        : static_cast<double>(*std::max_element(c.units.begin(), c.units.end()));
    const auto& weights = c.parameters.weights;
    const double weight =
        std::accumulate(weights.begin(), weights.begin() + c.parameters.lanes, 0.0);
    for (std::uint32_t lane = 0; lane < c.parameters.lanes; ++lane) {
      const double finish = static_cast<double>(bytes[lane]) / weights[lane];
      // Each unit's time is rounded down by less than one byte of a lane of full weight.
      EXPECT_LE(finish,
                (total + (c.parameters.lanes - 1.0) * largest) / weight +
                    static_cast<double>(c.units.size()))
          << "seed " << seed << " lane " << lane;
    }
  }
}

TEST(LaneLoads, EqualUnitsTakeTurnsFromThePreferredLaneOn) {
  LaneLoads loads(5);
  Parameters parameters;
  parameters.lanes = 3;
  std::vector<std::uint32_t> lanes(7);
  for (std::uint32_t& lane : lanes) {
    lane = loads.assign(1000, parameters);
  }
  EXPECT_EQ(lanes, (std::vector<std::uint32_t>{2, 0, 1, 2, 0, 1, 2}));
}

TEST(LaneLoads, ANewEpochStartsFromNothing) {
  LaneLoads loads;
  Parameters parameters;
  EXPECT_EQ(loads.assign(1 << 30, parameters), 0U);
  parameters.epoch = 1;
  parameters.lanes = 2;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(loads.assign(1, parameters), static_cast<std::uint32_t>(i % 2));
  }
}

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

TEST(BetterWeights, FollowSpeedsThatAreFarOff) {
  constexpr int kFull = kFullWeight;
  const Weights full(4, kFull);
  const struct {
    const char* what;
    std::vector<double> speeds;
    Weights current;
    double busy;
    std::optional<Weights> better;
  } rows[] = {
      {"equal speeds", {5, 5, 5, 5}, full, kBusy, {}},
      {"one lane", {3}, {kFull}, kBusy, {}},
      {"a quarter of the speed", {8, 2, 8, 8}, full, kBusy, Weights{16, 4, 16, 16}},
      {"of two", {8, 2}, {16, 16}, kBusy, Weights{16, 4}},
      {"hardly any speed", {1e9, 1}, {16, 16}, kBusy, Weights{16, 1}},
      {"it does not wait for the network", {8, 2, 8, 8}, full, kIdle, {}},
      {"nor does this one", {8, 1, 8, 8}, {16, 4, 16, 16}, kIdle, {}},
      {"any rank may give a weight back", {8, 8, 8, 8}, {16, 4, 16, 16}, kIdle, full},
      {"noise", {8, 5.5, 7, 8}, full, kBusy, {}},
      {"one fast lane does not make the others slow", {8, 8, 80, 8}, full, kBusy, {}},
      {"even slower", {8, 1, 8, 8}, {16, 4, 16, 16}, kBusy, Weights{16, 2, 16, 16}},
      {"another one is slow", {2, 8, 8, 8}, {16, 4, 16, 16}, kBusy, Weights{4, 16, 16, 16}}};
  for (const auto& [what, speeds, current, busy, better] : rows) {
    EXPECT_EQ(better, weights_of(speeds, current, busy)) << what;
  }
}

TEST(BetterWeights, WeightsThatFitAreKept) {
  for (const double busy : {kBusy, kIdle}) {
    for (const double speed : {0.2, 0.25, 0.3}) {
      EXPECT_FALSE(weights_of({1, speed, 1, 1}, {16, 4, 16, 16}, busy)) << speed;
    }
  }
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
