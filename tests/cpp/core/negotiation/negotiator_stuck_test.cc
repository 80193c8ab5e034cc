#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/near_miss.h"
#include "csrc/core/negotiation/negotiator.h"
#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

Request unnamed(const std::string& automatic, OpKind kind) {
  Request request = make_request(automatic, kind, {2});
  request.cacheable = false;
  return request;
}

class NegotiatorStuckTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  int last() const { return size() - 1; }

  /// Rank 0 waits for one thing, all others for another one.
  void diverge(NegotiatingRanks& ranks) {
    ranks.submit(0, unnamed("allreduce.noname.0.5", OpKind::kAllreduce));
    for (int rank = 1; rank < size(); ++rank) {
      ranks.submit(rank, unnamed("broadcast.noname.0.2", OpKind::kBroadcast));
    }
  }
  static void stick(NegotiatingRanks& ranks, bool stuck) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      ranks.set_stuck(rank, stuck);
    }
  }
};

TEST_P(NegotiatorStuckTest, WhenAllRanksWaitForDifferentThingsAllFailAndBothAreNamed) {
  NegotiatingRanks ranks(size());
  stick(ranks, true);
  diverge(ranks);
  for (const RoundOutcome& outcome : ranks.round()) {
    ASSERT_EQ(outcome.ready.size(), 1U);
    const Status& status = outcome.ready[0].status;
    EXPECT_EQ(status.code(), Code::kMismatch);
    for (const std::string& part : {std::string("rank 0 for 'allreduce.noname.0.5'"),
                                    std::to_string(last()) + " for 'broadcast.noname.0.2'"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
  ranks.submit_everywhere(make_request("x"));
  EXPECT_TRUE(ranks.round()[0].ready[0].status.ok());
}

TEST_P(NegotiatorStuckTest, ARankThatIsMerelySlowIsWaitedFor) {
  NegotiatingRanks ranks(size());
  for (int slow = 0; slow < size(); ++slow) {
    stick(ranks, true);
    ranks.set_stuck(slow, false);
    diverge(ranks);
    EXPECT_TRUE(ranks.round()[0].ready.empty());
    EXPECT_TRUE(ranks.round()[0].ready.empty());
    stick(ranks, false);
    ranks.submit(0, unnamed("broadcast.noname.0.2", OpKind::kBroadcast));
    for (int rank = 1; rank < size(); ++rank) {
      ranks.submit(rank, unnamed("allreduce.noname.0.5", OpKind::kAllreduce));
    }
    EXPECT_EQ(ranks.round()[0].ready.size(), 2U);
  }
}

/// Something else became ready in the round: only the next one can tell.
TEST_P(NegotiatorStuckTest, ARoundThatDecidesSomethingIsLookedAtAgain) {
  NegotiatingRanks ranks(size());
  stick(ranks, true);
  diverge(ranks);
  ranks.submit_everywhere(make_request("x"));
  for (const RoundOutcome& outcome : ranks.round()) {
    ASSERT_EQ(outcome.ready.size(), 1U);
    EXPECT_TRUE(outcome.ready[0].status.ok());
    EXPECT_TRUE(outcome.look_again);
  }
  ranks.of(last()).look_again();
  EXPECT_TRUE(ranks.of(last()).urgent());
  for (const RoundOutcome& outcome : ranks.round()) {
    ASSERT_EQ(outcome.ready.size(), 1U);
    EXPECT_FALSE(outcome.ready[0].status.ok());
    EXPECT_FALSE(outcome.look_again);
  }
}

/// All but rank 0 mean another kind of operation of the same name.
class NearMissRanks : public NegotiatingRanks {
 public:
  explicit NearMissRanks(int size) : NegotiatingRanks(size) {}

  void diverge() {
    submit(0, make_request("allreduce.x"));
    for (int rank = 1; rank < size(); ++rank) {
      submit(rank, make_request("allgather.x", OpKind::kAllgather, {2}));
    }
  }
  void set_states(std::uint32_t state) {
    for (int rank = 0; rank < size(); ++rank) {
      set_state(rank, state);
    }
  }
  void expect_failure() {
    round();
    EXPECT_TRUE(of(0).urgent()) << "they compare what they wait for";
    const auto outcomes = round();
    for (const RoundOutcome& outcome : outcomes) {
      ASSERT_EQ(outcome.ready.size(), 1U);
      const Status& status = outcome.ready[0].status;
      EXPECT_EQ(status.code(), Code::kMismatch);
      EXPECT_EQ(status.message(), outcomes[0].ready[0].status.message());
      for (const std::string& part : {std::string("rank 0 for 'allreduce.x'"),
                                      std::string("rank 1"),
                                      std::string(" for 'allgather.x'")}) {
        EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
      }
    }
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(0U, of(rank).waiting());
      EXPECT_FALSE(of(rank).urgent());
    }
  }
};

TEST_P(NegotiatorStuckTest, OneNameAndTwoKindsFailWhenAllRanksWaitForLong) {
  NearMissRanks ranks(size());
  ranks.set_states(kFlagMoving);
  ranks.diverge();
  ranks.expect_failure();
  ranks.submit_everywhere(make_request("allreduce.x"));
  EXPECT_TRUE(ranks.round()[0].ready[0].status.ok());
}

TEST_P(NegotiatorStuckTest, OneNameAndTwoKindsFailAlsoWhenTheyAreCached) {
  NearMissRanks ranks(size());
  for (const Request& request :
       {make_request("allreduce.x"), make_request("allgather.x", OpKind::kAllgather, {2})}) {
    ranks.submit_everywhere(request);
    ranks.round();
  }
  ranks.diverge();
  ranks.set_states(kFlagMoving);
  ranks.expect_failure();
  for (int again = 0; again < 2; ++again) {
    ranks.submit_everywhere(make_request("allreduce.x"));
    ranks.submit_everywhere(make_request("allgather.x", OpKind::kAllgather, {2}));
    EXPECT_EQ(2U, ranks.round()[0].ready.size());
  }
}

TEST_P(NegotiatorStuckTest, OneNameAndTwoKindsAreFineWhileSomeRankMayBringTheOther) {
  for (const std::uint32_t first : {kFlagMoving | kFlagOpen, kFlagOpen + 0U}) {
    NearMissRanks ranks(size());
    ranks.set_states(kFlagMoving);
    ranks.set_state(0, first);
    ranks.diverge();
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(ranks.round()[0].ready.empty());
      EXPECT_FALSE(ranks.of(0).urgent());
    }
    ranks.submit(0, make_request("allgather.x", OpKind::kAllgather, {2}));
    for (int rank = 1; rank < size(); ++rank) {
      ranks.submit(rank, make_request("allreduce.x"));
    }
    EXPECT_EQ(2U, ranks.round()[0].ready.size());
  }
}

TEST_P(NegotiatorStuckTest, OtherNamesAreLeftToTheStallInspector) {
  NearMissRanks ranks(size());
  ranks.set_states(0);
  ranks.submit(0, make_request("allreduce.x"));
  ranks.submit(last(), make_request("allgather.y", OpKind::kAllgather, {2}));
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(ranks.round()[0].ready.empty());
  }
  NegotiatingRanks others(size());
  stick(others, true);
  others.submit(0, make_request("a"));
  EXPECT_TRUE(others.round()[0].ready.empty()) << "a name that the user gave";
}

INSTANTIATE_TEST_SUITE_P(Sizes, NegotiatorStuckTest, testing::Values(2, 4, 7));

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
