#include "csrc/control/tcp/doubling_plan.h"

#include <gtest/gtest.h>

namespace aiacc {
namespace {

/// What a partner says by then is of its block, and of no rank that has been heard already.
TEST(DoublingPlan, TheBlocksOfAllStagesAreAllRanksOnce) {
  for (int size = 1; size <= 40; ++size) {
    for (int rank = 0; rank < size; ++rank) {
      const DoublingPlan plan = DoublingPlan::of(rank, size);
      ASSERT_EQ(plan.stages.size(), plan.blocks.size());
      if (plan.proxy >= 0) {
        continue;
      }
      for (int other = 0; other < size; ++other) {
        int times = other == rank || other == plan.extra ? 1 : 0;
        for (std::size_t k = 0; k < plan.blocks.size(); ++k) {
          times += plan.blocks[k].has(other, other) ? 1 : 0;
          EXPECT_TRUE(plan.blocks[k].has(plan.stages[k], plan.stages[k]));
          EXPECT_FALSE(plan.blocks[k].has(0, size - 1));
        }
        EXPECT_EQ(1, times) << other << " for " << rank << " of " << size;
      }
    }
  }
}

TEST(DoublingPlan, PartnersMeetInTheSameStage) {
  for (int size = 1; size <= 40; ++size) {
    for (int rank = 0; rank < size; ++rank) {
      const DoublingPlan mine = DoublingPlan::of(rank, size);
      for (std::size_t stage = 0; stage < mine.stages.size(); ++stage) {
        const int partner = mine.stages[stage];
        ASSERT_TRUE(partner >= 0 && partner < size);
        EXPECT_EQ(DoublingPlan::of(partner, size).stages[stage], rank);
      }
      if (mine.proxy >= 0) {
        EXPECT_TRUE(mine.stages.empty());
        EXPECT_EQ(DoublingPlan::of(mine.proxy, size).extra, rank);
      }
      if (mine.extra >= 0) {
        EXPECT_EQ(DoublingPlan::of(mine.extra, size).proxy, rank);
      }
    }
  }
}

}  // namespace
}  // namespace aiacc
