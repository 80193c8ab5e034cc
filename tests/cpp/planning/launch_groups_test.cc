#include "csrc/planning/launch_groups.h"

#include <vector>

#include <gtest/gtest.h>

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

TEST(PlanGroups, OneUnitForEachLane) {
  EXPECT_EQ((std::vector<int>{2, 2, 1}), groups_of({{0, 0}, {0, 1}, {0, 0}, {0, 1}, {0, 0}}));
  EXPECT_EQ((std::vector<int>{1, 2, 1}), groups_of({{0, 1}, {0, 1}, {0, 0}, {0, 0}}));
  EXPECT_EQ((std::vector<int>{3}), groups_of({{0, 63}, {0, 0}, {0, 7}}));
}

TEST(PlanGroups, OneLaneHasNone) {
  EXPECT_EQ((std::vector<int>{1, 1}), groups_of({{0, 0}, {0, 0}}));
}

TEST(PlanGroups, OneEngineForEach) {
  EXPECT_EQ((std::vector<int>{2, 1, 1}), groups_of({{0, 0}, {0, 1}, {1, 2}, {0, 3}}));
}

TEST(PlanGroups, NothingOfNothing) { EXPECT_TRUE(groups_of({}).empty()); }

}  // namespace
}  // namespace aiacc
