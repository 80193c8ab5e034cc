#include "csrc/core/negotiation/near_miss.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

RankSet ranks_of(const std::vector<int>& ranks) {
  RankSet set;
  for (const int rank : ranks) {
    set.add(rank);
  }
  return set;
}

/// "name: label label; name: ..."
std::string found(const std::vector<PendingName>& names) {
  Answers answers;
  answers.ranks = RankSet(0, 3);
  answers.names = names;
  std::string text;
  for (const NearMiss& miss : near_misses(answers)) {
    text += (text.empty() ? "" : "; ") + miss.name + ":";
    for (const PendingName& one : miss.operations) {
      text += " " + one.label;
    }
  }
  return text;
}

TEST(NearMiss, OneNameOfTwoKindsOnDifferentRanks) {
  EXPECT_EQ("x: allgather.x allreduce.x",
            found({{"allgather.x", ranks_of({1})}, {"allreduce.x", ranks_of({0, 2, 3})}}));
  EXPECT_EQ("a.b: broadcast.a.b grouped_allreduce.a.b sparse_allreduce.a.b",
            found({{"broadcast.a.b", ranks_of({0})},
                   {"grouped_allreduce.a.b", ranks_of({1})},
                   {"sparse_allreduce.a.b", ranks_of({2})}}));
}

TEST(NearMiss, BothOnOneRankIsFine) {
  EXPECT_EQ("", found({{"allgather.x", ranks_of({0})}, {"allreduce.x", ranks_of({0})}}));
  EXPECT_EQ("", found({{"allgather.x", ranks_of({0})}, {"allreduce.x", ranks_of({0, 1})}}));
  EXPECT_EQ("x: allgather.x allreduce.x",
            found({{"allgather.x", ranks_of({0, 1})}, {"allreduce.x", ranks_of({0, 2})}}));
}

TEST(NearMiss, OnlyThoseThatCross) {
  EXPECT_EQ("x: allgather.x allreduce.x",
            found({{"allgather.x", ranks_of({0, 1})},
                   {"allreduce.x", ranks_of({2})},
                   {"broadcast.x", ranks_of({0, 1, 2})}}));
}

TEST(NearMiss, OtherNamesSetsAndAutomaticOnes) {
  EXPECT_EQ("", found({{"allgather.x", ranks_of({0})}, {"allreduce.y", ranks_of({1})}}));
  EXPECT_EQ("", found({{"layer.x", ranks_of({0})}, {"other.x", ranks_of({1})}}));
  EXPECT_EQ("", found({{"x", ranks_of({0})}, {"allreduce.x", ranks_of({1})}}));
  EXPECT_EQ(
      "", found({{"allgather.x (process set 1)", ranks_of({0})}, {"allreduce.x", ranks_of({1})}}));
  EXPECT_EQ(
      "",
      found({{"allgather.noname.0.5", ranks_of({0})}, {"allreduce.noname.0.5", ranks_of({1})}}));
}

}  // namespace
}  // namespace aiacc
