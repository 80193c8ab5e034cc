#include "csrc/planning/device_placement.h"

#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(DevicePlacementTest, TheFirstThatServes) {
  const std::vector<DevicePlacement> known = {{0, 1}, {2, 1}, {0, -1}};
  EXPECT_EQ(0U, find_placement(known, {0, 1}));
  EXPECT_EQ(1U, find_placement(known, {2, 1}));
  EXPECT_EQ(3U, find_placement(known, {1, 0})) << "crosswise is another one";
  EXPECT_EQ(0U, find_placement({}, {0, 1}));
}

TEST(DevicePlacementTest, WhoHasJoinedTakesAny) {
  const std::vector<DevicePlacement> known = {{0, 1}, {2, 1}, {3, -1}};
  EXPECT_EQ(0U, find_placement(known, {0, -1}));
  EXPECT_EQ(1U, find_placement(known, {2, -1}));
  EXPECT_EQ(0U, find_placement(known, {-1, 1}));
  EXPECT_EQ(3U, find_placement(known, {4, -1}));
}

TEST(DevicePlacementTest, ATensorIsNotMovedToWhereAJoinedRankHappenedToBe) {
  const std::vector<DevicePlacement> known = {{3, -1}};
  EXPECT_EQ(0U, find_placement(known, {3, -1}));
  EXPECT_EQ(1U, find_placement(known, {3, 0}));
}

TEST(DevicePlacementTest, TheSameByValue) {
  const auto a = std::make_shared<DevicePlacement>(DevicePlacement{0, 1});
  EXPECT_TRUE(same_placement(nullptr, nullptr));
  EXPECT_TRUE(same_placement(a, std::make_shared<DevicePlacement>(*a)));
  EXPECT_FALSE(same_placement(a, std::make_shared<DevicePlacement>(DevicePlacement{0, 0})));
  EXPECT_FALSE(same_placement(a, nullptr));
  EXPECT_FALSE(same_placement(nullptr, a));
}

}  // namespace
}  // namespace aiacc
