#include "csrc/core/negotiation/process_set_table.h"

#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(ProcessSetTable, SetZeroIsAllRanksAndStays) {
  ProcessSetTable sets(3);
  EXPECT_EQ(*sets.members(0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(sets.find({0, 1, 2}), 0U);
  EXPECT_FALSE(sets.remove(0));
  EXPECT_NE(sets.members(0), nullptr);
}

TEST(ProcessSetTable, KnowsMembersAndTheirPlaces) {
  ProcessSetTable sets(6);
  const auto id = sets.add({1, 4, 5});
  EXPECT_EQ(*sets.members(id), (std::vector<int>{1, 4, 5}));
  EXPECT_EQ(sets.index_of(id, 1), 0);
  EXPECT_EQ(sets.index_of(id, 5), 2);
  EXPECT_EQ(sets.index_of(id, 3), -1);
  EXPECT_EQ(sets.index_of(id, 6), -1);
  EXPECT_EQ(sets.index_of(77, 1), -1);
  EXPECT_EQ(sets.find({1, 4, 5}), id);
  EXPECT_FALSE(sets.find({1, 4}));
}

TEST(ProcessSetTable, IdsAreNotUsedAgain) {
  ProcessSetTable sets(4);
  const auto first = sets.add({0, 1});
  EXPECT_TRUE(sets.remove(first));
  EXPECT_FALSE(sets.remove(first));
  EXPECT_EQ(sets.members(first), nullptr);
  EXPECT_FALSE(sets.find({0, 1}));
  EXPECT_NE(sets.add({0, 1}), first);
}

}  // namespace
}  // namespace aiacc
