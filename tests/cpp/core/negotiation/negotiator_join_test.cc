#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/negotiator.h"
#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

Request join() {
  Request request = make_request("join", OpKind::kJoin, {});
  request.cacheable = false;
  return request;
}

/// Ranks with different numbers of steps, each of which ends in a join, again and again.
class Simulation {
 public:
  Simulation(int size, std::size_t capacity, std::uint32_t seed)
      : random_(seed), ranks_(size, capacity, seed), of_(static_cast<std::size_t>(size)) {}

  void play() {
    for (int epoch = 0; epoch < 4; ++epoch) {
      begin();
      for (int rounds = 0; !over(); ++rounds) {
        ASSERT_LT(rounds, 1000) << "nothing goes on any more";
        advance();
        check(ranks_.round());
        if (testing::Test::HasFailure()) {
          return;
        }
      }
    }
  }

 private:
  struct Rank {
    int steps = 0;  ///< of this epoch
    int done = 0;
    std::map<std::string, std::uint64_t> waiting;  ///< tickets by name
    std::uint64_t join = 0;                        ///< ticket
    bool over = false;
  };

  void begin() {
    for (Rank& rank : of_) {
      rank = {};
      rank.steps = static_cast<int>(random_() % 5);
    }
  }
  bool over() const {
    return std::all_of(of_.begin(), of_.end(), [](const Rank& rank) { return rank.over; });
  }

  /// A step is three tensors, one of them a group, one without a slot.
  static std::vector<Request> step() {
    std::vector<Request> requests = {make_request("a"), make_request("b", {7}), make_request("c")};
    requests[0].op = ReduceOp::kAverage;
    requests[1].more = {{DataType::kInt8, {2}}, {DataType::kFloat64, {3}}};
    requests[2].cacheable = false;
    return requests;
  }

  void advance() {
    for (int number = 0; number < ranks_.size(); ++number) {
      Rank& rank = of_[static_cast<std::size_t>(number)];
      if (rank.join != 0 || rank.over || random_() % 2 == 0) {
        continue;
      }
      // A rank may join with what it has submitted still under way.
      if (!rank.waiting.empty() && !(rank.done == rank.steps && random_() % 2 == 0)) {
        continue;
      }
      if (rank.done == rank.steps) {
        rank.join = ranks_.submit(number, join());
        continue;
      }
      ++rank.done;
      std::vector<Request> requests = step();
      std::shuffle(requests.begin(), requests.end(), random_);
      for (const Request& request : requests) {
        rank.waiting[request.name] = ranks_.submit(number, request);
      }
    }
  }

  void check(const std::vector<RoundOutcome>& outcomes) {
    const auto count = outcomes[0].ready.size();
    for (int number = 0; number < ranks_.size(); ++number) {
      Rank& rank = of_[static_cast<std::size_t>(number)];
      const auto& ready = outcomes[static_cast<std::size_t>(number)].ready;
      ASSERT_EQ(ready.size(), count);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(ready[i].status.ok()) << ready[i].status.message();
        EXPECT_EQ(ready[i].joined, outcomes[0].ready[i].joined) << "all code it, or none";
        EXPECT_TRUE(ready[i].joined || ready[i].ticket != 0) << "who gives zeros has joined";
        if (ready[i].ticket == 0) {
          ASSERT_NE(ready[i].zeros, nullptr);
          EXPECT_NE(rank.join, 0U) << "only who has joined gives zeros";
          EXPECT_EQ(name_at(outcomes, i), ready[i].zeros->name);
        } else if (ready[i].ticket == rank.join) {
          EXPECT_EQ(ready[i].value, outcomes[0].ready[i].value);
          EXPECT_TRUE(rank.waiting.empty()) << "join returned before the rank's own work";
          rank.over = true;
        } else {
          EXPECT_EQ(rank.waiting.erase(name_at(outcomes, i)), 1U);
        }
      }
    }
  }

  /// The name of what is ready at place `i`, which some rank has submitted itself.
  std::string name_at(const std::vector<RoundOutcome>& outcomes, std::size_t i) {
    for (std::size_t number = 0; number < of_.size(); ++number) {
      const std::uint64_t ticket = outcomes[number].ready[i].ticket;
      for (const auto& [name, waiting] : of_[number].waiting) {
        if (ticket == waiting) {
          found_[i] = name;
        }
      }
    }
    return found_[i];
  }

  std::mt19937 random_;
  NegotiatingRanks ranks_;
  std::vector<Rank> of_;
  std::map<std::size_t, std::string> found_;
};

class NegotiatorJoinTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }

  /// Rank 0 has joined, the others have not.
  void join_rank_0(NegotiatingRanks& ranks) {
    ranks.submit(0, join());
    EXPECT_EQ(ranks.round()[0].ready.empty(), size() > 1);
    ranks.urgent_rounds();
  }

  /// The others join too; all learn the last one, and everything works again.
  void finish(NegotiatingRanks& ranks) {
    for (int rank = 1; rank < size(); ++rank) {
      ranks.submit(rank, join());
    }
    if (size() > 1) {
      for (const RoundOutcome& outcome : ranks.round()) {
        ASSERT_EQ(outcome.ready.size(), 1U);
        EXPECT_EQ(outcome.ready[0].value, size() - 1);
      }
    }
    for (const OpKind kind : {OpKind::kBroadcast, OpKind::kAllreduce, OpKind::kAllgather}) {
      for (int i = 0; i < 2; ++i) {
        ranks.submit_everywhere(make_request("afterwards", kind, {2}));
        ranks.round();
        ranks.urgent_rounds();
        for (int rank = 0; rank < size(); ++rank) {
          EXPECT_TRUE(ranks.pending(rank).empty());
        }
      }
    }
  }
};

TEST_P(NegotiatorJoinTest, RanksMayHaveDifferentNumbersOfSteps) {
  for (const std::size_t capacity : {std::size_t{0}, std::size_t{1}, std::size_t{4096}}) {
    for (std::uint32_t seed = 0; seed < 100; ++seed) {
      SCOPED_TRACE("capacity " + std::to_string(capacity) + ", seed " + std::to_string(seed));
      Simulation(size(), capacity, seed).play();
      if (HasFailure()) {
        return;
      }
    }
  }
}

/// What needs the rank that has joined, known before or not, fails as soon as one rank wants it.
TEST_P(NegotiatorJoinTest, WhatZerosDoNotAnswerFailsAtOnceOnEveryRank) {
  const std::vector<std::pair<OpKind, ReduceOp>> kinds = {
      {OpKind::kAllgather, ReduceOp::kSum},
      {OpKind::kBroadcast, ReduceOp::kSum},
      {OpKind::kBarrier, ReduceOp::kSum},
      {OpKind::kAlltoall, ReduceOp::kSum},
      {OpKind::kReducescatter, ReduceOp::kSum},
      {OpKind::kAllreduce, ReduceOp::kMin},
      {OpKind::kAllreduce, ReduceOp::kMax},
      {OpKind::kAllreduce, ReduceOp::kProduct},
  };
  for (const auto& [kind, op] : kinds) {
    for (const bool known : {false, true}) {
      for (const bool before : {false, true}) {  // the submission comes before the join
        SCOPED_TRACE(std::string(name_of(kind)) + (known ? ", known" : "") +
                     (before ? ", before" : ""));
        NegotiatingRanks ranks(size());
        Request request = make_request("x", kind, {4});
        request.op = op;
        if (kind == OpKind::kAlltoall) {
          request.numbers.assign(static_cast<std::size_t>(size()), 0);
        }
        if (known) {
          ranks.submit_everywhere(request);
          ranks.round();
        }
        std::vector<RoundOutcome> outcomes;
        if (before) {
          for (int rank = 1; rank < size(); ++rank) {
            ranks.submit(rank, request);
          }
          ranks.round();
          ranks.submit(0, join());
          outcomes = ranks.round();
        } else {
          join_rank_0(ranks);
          for (int rank = 1; rank < size(); ++rank) {
            ranks.submit(rank, request);
          }
          outcomes = ranks.round();
        }
        const auto late = ranks.urgent_rounds();
        for (int rank = 1; rank < size(); ++rank) {
          const auto& ready = !late.empty() && !late[static_cast<std::size_t>(rank)].ready.empty()
                                  ? late[static_cast<std::size_t>(rank)].ready
                                  : outcomes[static_cast<std::size_t>(rank)].ready;
          ASSERT_EQ(ready.size(), 1U) << "rank " << rank;
          EXPECT_EQ(ready[0].status.code(), Code::kMismatch);
          EXPECT_NE(ready[0].status.message().find("'x': rank 0 has joined"), std::string::npos)
              << ready[0].status.message();
        }
        finish(ranks);
      }
    }
  }
}

/// Only one rank wants it; the others are slow, and get the same when they come.
TEST_P(NegotiatorJoinTest, ARankNeedNotWaitForTheOthersToFail) {
  if (size() < 3) {
    GTEST_SKIP() << "needs a rank that is slow";
  }
  NegotiatingRanks ranks(size());
  join_rank_0(ranks);
  for (int rank = 1; rank < size(); ++rank) {
    ranks.submit(rank, make_request("different" + std::to_string(rank), OpKind::kBarrier, {}));
    const auto outcomes = ranks.round();
    ASSERT_EQ(outcomes[static_cast<std::size_t>(rank)].ready.size(), 1U);
    EXPECT_FALSE(outcomes[static_cast<std::size_t>(rank)].ready[0].status.ok());
  }
  finish(ranks);
}

TEST_P(NegotiatorJoinTest, SetsWithoutTheJoinedRankGoOnAndOthersFail) {
  if (size() < 3) {
    GTEST_SKIP() << "needs a set of two without rank 0";
  }
  NegotiatingRanks ranks(size());
  const std::uint32_t with = ranks.add_set({0, 1});
  const std::uint32_t without = ranks.add_set({1, 2});
  Request in_with = make_request("x");
  in_with.process_set = with;
  Request in_without = make_request("x");
  in_without.process_set = without;
  for (const bool known : {false, true}) {
    SCOPED_TRACE(known);
    ranks.submit_to_set(in_with);
    ranks.submit_to_set(in_without);
    ASSERT_EQ(ranks.round()[1].ready.size(), 2U);
    join_rank_0(ranks);
    for (int i = 0; i < 2; ++i) {
      ranks.submit_to_set(in_without);
      const auto outcomes = ranks.round();
      ASSERT_EQ(outcomes[1].ready.size(), 1U);
      EXPECT_TRUE(outcomes[1].ready[0].status.ok());
      ASSERT_EQ(outcomes[2].ready.size(), 1U);
      EXPECT_TRUE(outcomes[0].ready.empty());
    }
    ranks.submit(1, in_with);
    const auto outcomes = ranks.round();
    ASSERT_EQ(outcomes[1].ready.size(), 1U);
    EXPECT_EQ(outcomes[1].ready[0].status.code(), Code::kMismatch);
    finish(ranks);
  }
}

/// A rank that joins with an operation under way still owes the others what it has submitted.
TEST_P(NegotiatorJoinTest, WhatARankSubmittedBeforeItJoinedIsNotZero) {
  for (const bool known : {false, true}) {
    for (const OpKind kind : {OpKind::kAllreduce, OpKind::kAllgather}) {
      NegotiatingRanks ranks(size());
      const Request request = make_request("x", kind, {3});
      if (known) {
        ranks.submit_everywhere(request);
        ranks.round();
      }
      const std::uint64_t ticket = ranks.submit(0, request);
      if (size() > 1) {
        ranks.round();
      }
      ranks.submit(0, join());
      std::vector<RoundOutcome> outcomes = ranks.round();
      ranks.urgent_rounds();
      if (size() == 1) {
        ASSERT_EQ(outcomes[0].ready.size(), 2U);
        continue;
      }
      for (int rank = 1; rank < size(); ++rank) {
        ranks.submit(rank, request);
      }
      outcomes = ranks.round();
      ASSERT_EQ(outcomes[0].ready.size(), 1U);
      EXPECT_EQ(outcomes[0].ready[0].ticket, ticket);
      EXPECT_TRUE(outcomes[0].ready[0].status.ok());
      finish(ranks);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NegotiatorJoinTest, testing::Values(1, 2, 4, 7));

}  // namespace
}  // namespace aiacc
