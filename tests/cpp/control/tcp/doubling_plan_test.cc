#include "csrc/control/tcp/doubling_plan.h"

#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

/// One host per rank; all on one; in turn on a few; blocks of unequal hosts.
std::vector<std::vector<int>> layouts(int size) {
  std::vector<std::vector<int>> all(4);
  for (int rank = 0; rank < size; ++rank) {
    all[1].push_back(7);
    all[2].push_back(rank % 5);
    all[3].push_back(rank * rank / 40);
  }
  return all;
}

/// `check(rank, plan, hosts)` for every rank of many jobs.
template <class Check>
void for_all_plans(Check check) {
  for (int size = 1; size <= 40; ++size) {
    for (const std::vector<int>& host_of : layouts(size)) {
      const auto hosts = ranks_by_host(host_of, size);
      for (int rank = 0; rank < size; ++rank) {
        check(rank, DoublingPlan::of(rank, hosts), hosts);
      }
    }
  }
}

/// What a partner says by then is of its block, and of no rank that has been heard already.
TEST(DoublingPlan, TheBlocksOfAllStagesAreAllRanksOnce) {
  for_all_plans([](int rank, const DoublingPlan& plan, const auto& hosts) {
    if (plan.proxy >= 0) {
      return;
    }
    for (const std::vector<int>& ranks : hosts) {
      for (const int other : ranks) {
        int times = other == rank ? 1 : 0;
        for (const auto* partners : {&plan.folds, &plan.stages}) {
          for (const DoublingPlan::Partner& partner : *partners) {
            times += partner.block.has(other, other) ? 1 : 0;
            EXPECT_TRUE(partner.block.has(partner.rank, partner.rank));
          }
        }
        EXPECT_EQ(1, times) << other << " for " << rank;
      }
    }
  });
}

TEST(DoublingPlan, PartnersKnowEachOtherAndMeetInTheSameStage) {
  for_all_plans([](int rank, const DoublingPlan& mine, const auto& hosts) {
    for (std::size_t stage = 0; stage < mine.stages.size(); ++stage) {
      const int partner = mine.stages[stage].rank;
      EXPECT_EQ(DoublingPlan::of(partner, hosts).stages[stage].rank, rank);
    }
    for (const DoublingPlan::Partner& fold : mine.folds) {
      EXPECT_EQ(DoublingPlan::of(fold.rank, hosts).proxy, rank);
    }
    if (!mine.speaks()) {
      EXPECT_EQ(mine.partners(), std::vector<int>{mine.mates.front().rank});
    }
  });
}

TEST(DoublingPlan, OneRankOfAHostTalksToOtherHosts) {
  std::vector<int> host_of;
  for (int rank = 0; rank < 1000; ++rank) {
    host_of.push_back(rank / 8);
  }
  const auto hosts = ranks_by_host(host_of, 1000);
  std::size_t most = 0;
  for (int rank = 0; rank < 1000; ++rank) {
    const DoublingPlan plan = DoublingPlan::of(rank, hosts);
    if (plan.speaks()) {
      most = std::max(most, plan.partners().size() - (plan.mates.size() - 1));
    }
    EXPECT_TRUE(rank % 8 == 0 || plan.proxy == rank / 8 * 8) << rank;
  }
  EXPECT_EQ(7U, most);
}

TEST(RankBlock, HasRunsOfItsRanks) {
  const RankBlock block({9, 4, 5, 6, 1});
  EXPECT_TRUE(block.has(4, 6) && block.has(1, 1) && block.has(9, 9));
  EXPECT_FALSE(block.has(3, 4) || block.has(6, 9) || block.has(0, 0) || block.has(10, 10));
  EXPECT_EQ(10, block.end());
  EXPECT_TRUE(RankBlock().has(0, 1 << 20));
}

}  // namespace
}  // namespace aiacc
