#include "csrc/planning/spreading_tree.h"

#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(SpreadingTree, EveryRankHasItFromOneThatListsIt) {
  for (int size = 1; size <= 130; ++size) {
    std::vector<int> from(static_cast<std::size_t>(size), -1);
    for (int rank = 0; rank < size; ++rank) {
      for (const int child : spreading_children(rank, size)) {
        ASSERT_LT(child, size);
        ASSERT_EQ(from[static_cast<std::size_t>(child)], -1) << "twice: rank " << child;
        from[static_cast<std::size_t>(child)] = rank;
      }
    }
    EXPECT_EQ(from[0], -1);
    for (int rank = 1; rank < size; ++rank) {
      EXPECT_EQ(from[static_cast<std::size_t>(rank)], spreading_parent(rank));
      EXPECT_LT(spreading_parent(rank), rank);
    }
  }
}

TEST(SpreadingTree, NobodyHasManyConnections) {
  for (int rank = 0; rank < 1024; ++rank) {
    EXPECT_LE(spreading_children(rank, 1024).size() + (rank > 0 ? 1 : 0), 10U);
  }
}

}  // namespace
}  // namespace aiacc
