#include "csrc/core/negotiation/process_set_table.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(ProcessSetTable, KnowsMembersAndTheirPlacesAndUsesNoNumberAgain) {
  ProcessSetTable sets(6);
  const auto id = sets.add({1, 4, 5});
  const auto formed = sets.form({0, 3});
  EXPECT_EQ(*sets.members(id), (std::vector<int>{1, 4, 5}));
  for (const auto& [rank, place] : std::map<int, int>{{1, 0}, {5, 2}, {3, -1}, {6, -1}}) {
    EXPECT_EQ(sets.index_of(id, rank), place) << rank;
  }
  EXPECT_EQ(sets.index_of(77, 1), -1);
  EXPECT_EQ(sets.find({1, 4, 5}), id);
  EXPECT_EQ(sets.find({0, 1, 2, 3, 4, 5}), 0U);
  EXPECT_FALSE(sets.find({1, 4}));
  EXPECT_FALSE(sets.find({0, 3})) << "it was formed, so there may be others";
  EXPECT_EQ(sets.size(), 3U);

  EXPECT_FALSE(sets.remove(0));
  EXPECT_TRUE(sets.remove(id));
  EXPECT_FALSE(sets.remove(id));
  EXPECT_EQ(sets.members(id), nullptr);
  EXPECT_FALSE(sets.find({1, 4, 5}));
  EXPECT_GT(sets.add({1, 4, 5}), formed);
  EXPECT_NE(sets.members(0), nullptr);
}

}  // namespace
}  // namespace aiacc
