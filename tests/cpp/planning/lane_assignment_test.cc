#include "csrc/planning/lane_assignment.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

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

/// Seconds until all lanes are through, if lane i moves `speeds[i]` bytes per second.
double makespan(const std::vector<std::uint64_t>& bytes, const std::vector<double>& speeds) {
  double last = 0;
  for (std::size_t lane = 0; lane < bytes.size(); ++lane) {
    last = std::max(last, static_cast<double>(bytes[lane]) / speeds[lane]);
  }
  return last;
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

TEST(LaneLoads, SmallUnitsGoAroundALargeOne) {
  LaneLoads loads;
  Parameters parameters;
  parameters.lanes = 2;
  EXPECT_EQ(loads.assign(64 << 20, parameters), 0U);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(loads.assign(1 << 20, parameters), 1U);
  }
  EXPECT_EQ(loads.assign(1 << 20, parameters), 0U);
}

TEST(LaneLoads, WhatIsOverIsForgotten) {
  LaneLoads loads;
  Parameters parameters;
  parameters.lanes = 2;
  EXPECT_EQ(loads.assign(64 << 20, parameters), 0U);
  loads.clear();
  EXPECT_EQ(loads.assign(1, parameters), 0U);
  EXPECT_EQ(loads.assign(1, parameters), 1U);
  EXPECT_EQ(loads.assign(1, parameters), 0U);
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

TEST(LaneLoads, ASlowLaneCostsNoMoreThanItsSpeed) {
  // 64 MiB in units of 1 MiB over four lanes, of which one has a quarter of the speed: 3.25 of 4.
  Case c;
  c.parameters.lanes = 4;
  c.units.assign(64, 1 << 20);
  const std::vector<double> speeds = {1, 0.25, 1, 1};
  const double ideal = (64 << 20) / 3.25;
  LaneLoads equal;
  EXPECT_DOUBLE_EQ(makespan(assigned(equal, c), speeds), (16 << 20) / 0.25);
  c.parameters.weights[1] = kFullWeight / 4;
  LaneLoads weighted;
  EXPECT_LE(makespan(assigned(weighted, c), speeds), ideal + (1 << 20) / 0.25);
  EXPECT_LE(makespan(assigned(weighted, c), speeds), 1.05 * ideal);
}

}  // namespace
}  // namespace aiacc
