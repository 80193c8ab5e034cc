#include <vector>

#include <gtest/gtest.h>

#include "csrc/planning/device_placement.h"
#include "csrc/planning/launch_groups.h"

namespace aiacc {
namespace {

/// Sizes of the groups.
std::vector<int> groups_of(const std::vector<LaunchSlot>& units) {
  std::vector<bool> joined = {true};  // forgotten
  plan_launch_groups(units, joined);
  EXPECT_EQ(units.size(), joined.size());
  std::vector<int> sizes;
  bool open = false;
  for (const bool next : joined) {
    if (!open) {
      sizes.push_back(0);
    }
    ++sizes.back();
    open = next;
  }
  EXPECT_FALSE(open) << "the last unit is the last of its group";
  return sizes;
}

TEST(PlanGroups, OneUnitForEachLaneAndOneEngineForEach) {
  EXPECT_EQ((std::vector<int>{2, 2, 1}), groups_of({{0, 0}, {0, 1}, {0, 0}, {0, 1}, {0, 0}}));
  EXPECT_EQ((std::vector<int>{1, 2, 1}), groups_of({{0, 1}, {0, 1}, {0, 0}, {0, 0}}));
  EXPECT_EQ((std::vector<int>{3}), groups_of({{0, 63}, {0, 0}, {0, 7}}));
  EXPECT_EQ((std::vector<int>{1, 1}), groups_of({{0, 0}, {0, 0}}));
  EXPECT_EQ((std::vector<int>{2, 1, 1}), groups_of({{0, 0}, {0, 1}, {1, 2}, {0, 3}}));
  EXPECT_TRUE(groups_of({}).empty());
}

/// Who has joined takes any.
TEST(DevicePlacementTest, TheFirstThatServes) {
  const std::vector<DevicePlacement> known = {{0, 1}, {2, 1}, {3, -1}};
  EXPECT_EQ(0U, find_placement(known, {0, 1}));
  EXPECT_EQ(1U, find_placement(known, {2, 1}));
  EXPECT_EQ(3U, find_placement(known, {1, 0})) << "crosswise is another one";
  EXPECT_EQ(0U, find_placement({}, {0, 1}));
  EXPECT_EQ(0U, find_placement(known, {0, -1}));
  EXPECT_EQ(1U, find_placement(known, {2, -1}));
  EXPECT_EQ(0U, find_placement(known, {-1, 1}));
  EXPECT_EQ(3U, find_placement(known, {4, -1}));
  EXPECT_EQ(2U, find_placement(known, {3, -1}));
  EXPECT_EQ(3U, find_placement(known, {3, 0})) << "a joined rank happened to be there";
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
