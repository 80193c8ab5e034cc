#include "csrc/engines/hierarchical/host_topology.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(HostTopology, EqualHosts) {
  const HostTopology layout({7, 7, 3, 3});
  EXPECT_EQ(layout.hosts(), 2);
  EXPECT_EQ(layout.columns(), 2);
  EXPECT_EQ(layout.ranks_on(0), (std::vector<int>{0, 1}));
  EXPECT_EQ(layout.column(0), (std::vector<int>{0, 2}));
  EXPECT_EQ(layout.column(1), (std::vector<int>{1, 3}));
}

TEST(HostTopology, TheSmallestHostDecidesOnTheColumns) {
  const HostTopology layout({0, 0, 0, 1});
  EXPECT_EQ(layout.columns(), 1);
  EXPECT_EQ(layout.column(0), (std::vector<int>{0, 3}));
  EXPECT_EQ(layout.local(2), 2);
}

TEST(HostTopology, EvenMeansThatEveryRankHasAColumn) {
  EXPECT_TRUE(HostTopology({0, 1, 1, 0}).even());
  EXPECT_TRUE(HostTopology({5}).even());
  EXPECT_FALSE(HostTopology({0, 0, 1, 1, 1}).even());
}

TEST(HostTopology, AColumnIsInTheOrderOfRanksNotOfHosts) {
  const HostTopology layout({0, 1, 1, 0});
  EXPECT_EQ(layout.column(1), (std::vector<int>{2, 3}));
  EXPECT_EQ(layout.index_in_column(1, 0), 1);
  EXPECT_EQ(layout.index_in_column(1, 1), 0);
}

TEST(HostTopology, HoldsTogetherForAnySpread) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<int> host_of(1 + random() % 12);
    for (int& host : host_of) {
      host = static_cast<int>(random() % 4);
    }
    const HostTopology layout(host_of);
    for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
      EXPECT_EQ(layout.ranks_on(layout.host(rank))[static_cast<std::size_t>(layout.local(rank))],
                rank);
    }
    for (int column = 0; column < layout.columns(); ++column) {
      const std::vector<int> ranks = layout.column(column);
      ASSERT_EQ(static_cast<int>(ranks.size()), layout.hosts());
      EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
      for (int host = 0; host < layout.hosts(); ++host) {
        const int rank = ranks[static_cast<std::size_t>(layout.index_in_column(column, host))];
        EXPECT_EQ(layout.host(rank), host);
        EXPECT_EQ(layout.local(rank), column);
      }
    }
  }
}

}  // namespace
}  // namespace aiacc
