#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/near_miss.h"
#include "csrc/core/negotiation/negotiator.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

Request unnamed(const std::string& automatic, OpKind kind) {
  Request request = make_request(automatic, kind, {2});
  request.cacheable = false;
  return request;
}

/// What rank 0 and all others submit: automatic names, or one name of two kinds.
const Request kUnnamed[] = {unnamed("allreduce.noname.0.5", OpKind::kAllreduce),
                            unnamed("broadcast.noname.0.2", OpKind::kBroadcast)};
const Request kNearMiss[] = {make_request("allreduce.x"),
                             make_request("allgather.x", OpKind::kAllgather, {2})};

class NegotiatorStuckTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  int last() const { return size() - 1; }

  /// What all ranks say that they do: see Negotiator::contribute.
  void set_states(std::uint32_t state) {
    for (int rank = 0; rank < size(); ++rank) {
      ranks_.set_state(rank, state);
    }
  }
  void submit(const Request& first, const Request& others) {
    for (int rank = 0; rank < size(); ++rank) {
      ranks_.submit(rank, rank == 0 ? first : others);
    }
  }
  void expect_nothing_ready() { EXPECT_TRUE(ranks_.round()[0].ready.empty()); }
  /// The next round fails these on all ranks in the same words, and nothing is left.
  void expect_failure(const Request (&both)[2]) {
    const auto outcomes = ranks_.round();
    for (int rank = 0; rank < size(); ++rank) {
      const RoundOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      ASSERT_EQ(outcome.ready.size(), 1U);
      const Status& status = outcome.ready[0].status;
      expect_error(status,
                   Code::kMismatch,
                   {"rank 0 for '" + both[0].name + "'",
                    "rank 1",
                    std::to_string(last()) + " for '" + both[1].name + "'"});
      EXPECT_EQ(status.message(), outcomes[0].ready[0].status.message());
      EXPECT_FALSE(outcome.look_again);
      EXPECT_EQ(0U, ranks_.of(rank).waiting());
      EXPECT_FALSE(ranks_.of(rank).urgent());
    }
  }
  /// In the round before that ranks find out that they compare what they wait for.
  void expect_near_miss() {
    ranks_.round();
    EXPECT_TRUE(ranks_.of(0).urgent());
    expect_failure(kNearMiss);
  }

  NegotiatingRanks ranks_{GetParam()};
};

TEST_P(NegotiatorStuckTest, WhenAllRanksWaitForDifferentThingsAllFailAndBothAreNamed) {
  set_states(kFlagOpen);
  submit(kUnnamed[0], kUnnamed[1]);
  expect_failure(kUnnamed);
  ranks_.submit_everywhere(make_request("x"));
  EXPECT_TRUE(ranks_.round()[0].ready[0].status.ok());
}

TEST_P(NegotiatorStuckTest, ARankThatIsMerelySlowIsWaitedFor) {
  for (int slow = 0; slow < size(); ++slow) {
    set_states(kFlagOpen);
    ranks_.set_state(slow, kFlagMoving | kFlagOpen);
    submit(kUnnamed[0], kUnnamed[1]);
    expect_nothing_ready();
    expect_nothing_ready();
    set_states(kFlagMoving | kFlagOpen);
    submit(kUnnamed[1], kUnnamed[0]);
    EXPECT_EQ(ranks_.round()[0].ready.size(), 2U);
  }
}

/// Something else became ready in the round: only the next one can tell.
TEST_P(NegotiatorStuckTest, ARoundThatDecidesSomethingIsLookedAtAgain) {
  set_states(kFlagOpen);
  submit(kUnnamed[0], kUnnamed[1]);
  ranks_.submit_everywhere(make_request("x"));
  for (const RoundOutcome& outcome : ranks_.round()) {
    ASSERT_EQ(outcome.ready.size(), 1U);
    EXPECT_TRUE(outcome.ready[0].status.ok());
    EXPECT_TRUE(outcome.look_again);
  }
  ranks_.of(last()).look_again();
  EXPECT_TRUE(ranks_.of(last()).urgent());
  expect_failure(kUnnamed);
}

TEST_P(NegotiatorStuckTest, OneNameAndTwoKindsFailWhenAllRanksWaitForLong) {
  set_states(kFlagMoving);
  submit(kNearMiss[0], kNearMiss[1]);
  expect_near_miss();
  for (int again = 0; again < 3; ++again) {  // also when they are cached
    ranks_.submit_everywhere(kNearMiss[0]);
    ranks_.submit_everywhere(kNearMiss[1]);
    EXPECT_EQ(2U, ranks_.round()[0].ready.size());
  }
  submit(kNearMiss[0], kNearMiss[1]);
  expect_near_miss();
  ranks_.submit_everywhere(kNearMiss[0]);
  EXPECT_TRUE(ranks_.round()[0].ready[0].status.ok());
}

TEST_P(NegotiatorStuckTest, OneNameAndTwoKindsAreFineWhileSomeRankMayBringTheOther) {
  for (const std::uint32_t first : {kFlagMoving | kFlagOpen, kFlagOpen + 0U}) {
    set_states(kFlagMoving);
    ranks_.set_state(0, first);
    submit(kNearMiss[0], kNearMiss[1]);
    for (int round = 0; round < 3; ++round) {
      expect_nothing_ready();
      EXPECT_FALSE(ranks_.of(0).urgent());
    }
    submit(kNearMiss[1], kNearMiss[0]);
    EXPECT_EQ(2U, ranks_.round()[0].ready.size());
  }
}

TEST_P(NegotiatorStuckTest, OtherNamesAreLeftToTheStallInspector) {
  set_states(0);
  ranks_.submit(0, make_request("allreduce.x"));
  ranks_.submit(last(), make_request("allgather.y", OpKind::kAllgather, {2}));
  for (int round = 0; round < 3; ++round) {
    expect_nothing_ready();
  }
  set_states(kFlagOpen);
  expect_nothing_ready();  // names that the user gave
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

TEST(NearMiss, IsOneNameOfSeveralKindsOnDifferentRanks) {
  const struct {
    const char* what;
    std::vector<PendingName> names;
    const char* misses;
  } rows[] = {
      {"two kinds",
       {{"allgather.x", ranks_of({1})}, {"allreduce.x", ranks_of({0, 2, 3})}},
       "x: allgather.x allreduce.x"},
      {"three kinds",
       {{"broadcast.a.b", ranks_of({0})},
        {"grouped_allreduce.a.b", ranks_of({1})},
        {"sparse_allreduce.a.b", ranks_of({2})}},
       "a.b: broadcast.a.b grouped_allreduce.a.b sparse_allreduce.a.b"},
      {"both on one rank", {{"allgather.x", ranks_of({0})}, {"allreduce.x", ranks_of({0})}}, ""},
      {"one on some of the ranks of the other",
       {{"allgather.x", ranks_of({0})}, {"allreduce.x", ranks_of({0, 1})}},
       ""},
      {"they cross",
       {{"allgather.x", ranks_of({0, 1})}, {"allreduce.x", ranks_of({0, 2})}},
       "x: allgather.x allreduce.x"},
      {"the third does not",
       {{"allgather.x", ranks_of({0, 1})},
        {"allreduce.x", ranks_of({2})},
        {"broadcast.x", ranks_of({0, 1, 2})}},
       "x: allgather.x allreduce.x"},
      {"other names", {{"allgather.x", ranks_of({0})}, {"allreduce.y", ranks_of({1})}}, ""},
      {"no kinds", {{"layer.x", ranks_of({0})}, {"other.x", ranks_of({1})}}, ""},
      {"one kind", {{"x", ranks_of({0})}, {"allreduce.x", ranks_of({1})}}, ""},
      {"another set",
       {{"allgather.x (process set 1)", ranks_of({0})}, {"allreduce.x", ranks_of({1})}},
       ""},
      {"automatic names",
       {{"allgather.noname.0.5", ranks_of({0})}, {"allreduce.noname.0.5", ranks_of({1})}},
       ""}};
  for (const auto& [what, names, misses] : rows) {
    EXPECT_EQ(misses, found(names)) << what;
  }
}

}  // namespace
}  // namespace aiacc
