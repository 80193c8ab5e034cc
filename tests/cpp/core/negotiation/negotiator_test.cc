#include "csrc/core/negotiation/negotiator.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

constexpr OpKind kKinds[] = {OpKind::kAllreduce,
                             OpKind::kAllgather,
                             OpKind::kBroadcast,
                             OpKind::kBarrier,
                             OpKind::kReducescatter};

/// Of the cache: so little that names lose their slots.
constexpr std::uint64_t kPatience = 4;

/// What the ranks submit in one iteration under one name.
struct Plan {
  std::vector<Request> by_rank;
  bool uniform = true;  ///< all ranks alike: ready in the very round in which the last one came
  bool mismatch = false;
};

/// A workload: names of a fixed kind, submitted again and again, in another order on every rank.
class Workload {
 public:
  Workload(int size, std::uint32_t seed) : size_(size), random_(seed) {
    const std::size_t names = 1 + below(8);
    for (std::size_t i = 0; i < names; ++i) {
      kinds_.push_back(kKinds[below(std::size(kKinds))]);
      cacheable_.push_back(below(5) != 0);
    }
    for (int iteration = 0; iteration < 6; ++iteration) {
      plans_.emplace_back();
      for (std::size_t i = 0; i < names; ++i) {
        plans_.back().push_back(make_plan(i));
      }
    }
  }

  std::size_t iterations() const { return plans_.size(); }
  std::size_t names() const { return kinds_.size(); }
  const Plan& plan(std::size_t iteration, std::size_t name) const {
    return plans_[iteration][name];
  }
  std::size_t below(std::size_t limit) { return random_() % limit; }
  std::mt19937& random() { return random_; }

 private:
  Plan make_plan(std::size_t index) {
    Request request = make_request("t" + std::to_string(index), kinds_[index], {3, 2});
    request.cacheable = cacheable_[index];
    if (kinds_[index] == OpKind::kBarrier) {
      request.shape.clear();
    } else if (below(4) == 0) {
      request.shape[1] = 5;  // the signature changes on all ranks alike
    }
    Plan plan;
    plan.by_rank.assign(static_cast<std::size_t>(size_), request);
    if (kinds_[index] == OpKind::kAllgather && below(2) == 0) {
      for (Request& mine : plan.by_rank) {
        mine.shape[0] = static_cast<std::int64_t>(below(4));
        plan.uniform = plan.uniform && mine.shape == plan.by_rank[0].shape;
      }
    }
    if (size_ > 1 && below(6) == 0) {
      plan.by_rank[1 + below(static_cast<std::size_t>(size_) - 1)].dtype = DataType::kInt8;
      plan.mismatch = true;
      plan.uniform = false;
    }
    return plan;
  }

  int size_;
  std::mt19937 random_;
  std::vector<OpKind> kinds_;
  std::vector<bool> cacheable_;
  std::vector<std::vector<Plan>> plans_;
};

/// Plays a workload with random arrivals and checks every round against a model.
class Simulation {
 public:
  Simulation(int size, std::size_t capacity, std::uint32_t seed)
      : workload_(size, seed), ranks_(size, capacity, seed + 1, kPatience) {
    todo_.resize(static_cast<std::size_t>(size));
    for (auto& list : todo_) {
      for (std::size_t iteration = 0; iteration < workload_.iterations(); ++iteration) {
        std::vector<std::size_t> order(workload_.names());
        for (std::size_t i = 0; i < order.size(); ++i) {
          order[i] = i;
        }
        std::shuffle(order.begin(), order.end(), workload_.random());
        for (const std::size_t name : order) {
          list.push_back({iteration, name});
        }
      }
      std::reverse(list.begin(), list.end());
    }
  }

  void play() {
    int quiet = 0;
    while (quiet < 3) {
      submit_some();
      const std::vector<RoundOutcome> outcomes = ranks_.round();
      check(outcomes);
      if (testing::Test::HasFailure()) {
        return;
      }
      const bool idle =
          std::all_of(todo_.begin(), todo_.end(), [](const auto& list) { return list.empty(); });
      quiet = idle ? quiet + 1 : 0;
    }
    EXPECT_TRUE(waiting_.empty()) << "lost: " << waiting_.begin()->first.second;
  }

 private:
  /// Iteration and name.
  using Key = std::pair<std::size_t, std::size_t>;
  struct Waiting {
    std::vector<std::uint64_t> tickets;  ///< by rank; 0: not submitted
    int rounds_complete = 0;             ///< rounds since all ranks had submitted it
  };

  bool all_submitted(const Waiting& waiting) const {
    return std::find(waiting.tickets.begin(), waiting.tickets.end(), 0U) == waiting.tickets.end();
  }

  void submit_some() {
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      auto& list = todo_[static_cast<std::size_t>(rank)];
      for (std::size_t left = workload_.below(6); left > 0 && !list.empty(); --left) {
        const auto [iteration, name] = list.back();
        if (iteration > 0 && is_waiting(rank, {iteration - 1, name})) {
          break;  // still in flight on this rank
        }
        list.pop_back();
        Waiting& waiting = waiting_[{iteration, name}];
        waiting.tickets.resize(static_cast<std::size_t>(ranks_.size()));
        waiting.tickets[static_cast<std::size_t>(rank)] = ranks_.submit(
            rank, workload_.plan(iteration, name).by_rank[static_cast<std::size_t>(rank)]);
      }
    }
  }

  bool is_waiting(int rank, const Key& key) const {
    const auto found = waiting_.find(key);
    return found != waiting_.end() && found->second.tickets[static_cast<std::size_t>(rank)] != 0;
  }

  Key key_of(int rank, std::uint64_t ticket) const {
    for (const auto& [key, waiting] : waiting_) {
      if (waiting.tickets[static_cast<std::size_t>(rank)] == ticket) {
        return key;
      }
    }
    ADD_FAILURE() << "rank " << rank << " got the unknown ticket " << ticket;
    return {};
  }

  void check(const std::vector<RoundOutcome>& outcomes) {
    std::vector<Key> ready;
    for (const Response& response : outcomes[0].ready) {
      ready.push_back(key_of(0, response.ticket));
    }
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const auto& mine = outcomes[static_cast<std::size_t>(rank)].ready;
      ASSERT_EQ(mine.size(), ready.size()) << "rank " << rank;
      for (std::size_t i = 0; i < mine.size(); ++i) {
        ASSERT_EQ(key_of(rank, mine[i].ticket), ready[i]) << "rank " << rank << ", place " << i;
        check_agreement(ready[i], mine[i], outcomes[0].ready[i]);
      }
    }
    for (auto& [key, waiting] : waiting_) {
      if (!all_submitted(waiting)) {
        EXPECT_EQ(std::count(ready.begin(), ready.end(), key), 0) << "ready too early";
        continue;
      }
      const int allowed = workload_.plan(key.first, key.second).uniform ? 0 : 1;
      if (std::count(ready.begin(), ready.end(), key) == 0) {
        EXPECT_LT(waiting.rounds_complete, allowed) << "ready too late";
        ++waiting.rounds_complete;
      }
    }
    for (const Key& key : ready) {
      EXPECT_EQ(waiting_.erase(key), 1U);
    }
  }

  void check_agreement(const Key& key, const Response& mine, const Response& first) {
    const Plan& plan = workload_.plan(key.first, key.second);
    EXPECT_EQ(mine.status.code(), plan.mismatch ? Code::kMismatch : Code::kOk);
    EXPECT_EQ(mine.status.message(), first.status.message());
    std::vector<std::int64_t> extents;
    if (plan.by_rank[0].kind == OpKind::kAllgather && !plan.mismatch) {
      for (const Request& request : plan.by_rank) {
        extents.push_back(request.shape[0]);
      }
    }
    EXPECT_EQ(mine.first_extents, extents);
  }

  Workload workload_;
  NegotiatingRanks ranks_;
  std::vector<std::vector<Key>> todo_;  ///< by rank, last one first
  std::map<Key, Waiting> waiting_;
};

class NegotiatorTest : public testing::TestWithParam<int> {};

TEST_P(NegotiatorTest, AgreesWhateverTheOrderOfArrival) {
  for (const std::size_t capacity :
       {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{4096}}) {
    for (std::uint32_t seed = 0; seed < 150; ++seed) {
      SCOPED_TRACE("capacity " + std::to_string(capacity) + ", seed " + std::to_string(seed));
      Simulation(GetParam(), capacity, seed).play();
      if (HasFailure()) {
        return;
      }
    }
  }
}

TEST_P(NegotiatorTest, ARepeatedTensorTravelsAsABit) {
  NegotiatingRanks ranks(GetParam());
  ranks.submit_everywhere(make_request("a.rather.long.name.of.a.tensor"));
  ranks.round();
  ranks.submit_everywhere(make_request("a.rather.long.name.of.a.tensor"));
  Bytes share;
  ranks.of(0).contribute(share);
  EXPECT_EQ(share.size(), 24U);
}

/// NaN differs from itself, but the request is the same one.
TEST_P(NegotiatorTest, AFactorOfNanIsAgreedOnOnceAndThenTravelsAsABit) {
  NegotiatingRanks ranks(GetParam());
  Request request = make_request("x");
  request.prescale = std::nan("");
  for (int step = 0; step < 3; ++step) {
    ranks.submit_everywhere(request);
    const auto outcomes = ranks.round();
    ASSERT_EQ(outcomes[0].ready.size(), 1U) << step;
    EXPECT_TRUE(outcomes[0].ready[0].status.ok()) << outcomes[0].ready[0].status.message();
    EXPECT_FALSE(ranks.of(0).urgent());
  }
}

TEST_P(NegotiatorTest, DisagreementFailsEverywhereAndTheNameWorksAgain) {
  const int size = GetParam();
  NegotiatingRanks ranks(size);
  for (const bool cached : {false, true}) {
    if (cached) {
      ranks.submit_everywhere(make_request("w", {2, 3}));
      ASSERT_EQ(ranks.round()[0].ready.size(), 1U);
    }
    for (int rank = 0; rank < size; ++rank) {
      ranks.submit(rank, make_request("w", {2, rank == size - 1 && size > 1 ? 4 : 3}));
    }
    std::vector<RoundOutcome> outcomes = ranks.round();
    if (outcomes[0].ready.empty()) {
      // The slot had to be given up first: who sent a bit sends its request now, at once.
      EXPECT_TRUE(ranks.of(0).urgent());
      outcomes = ranks.round();
    }
    for (const RoundOutcome& outcome : outcomes) {
      ASSERT_EQ(outcome.ready.size(), 1U);
      const Status& status = outcome.ready[0].status;
      EXPECT_EQ(status.ok(), size == 1);
      if (size > 1) {
        EXPECT_NE(status.message().find("'w'"), std::string::npos) << status.message();
        EXPECT_NE(status.message().find("rank 0 "), std::string::npos) << status.message();
        EXPECT_NE(status.message().find("rank " + std::to_string(size - 1)), std::string::npos);
      }
    }
    ranks.submit_everywhere(make_request("w", {5, 5}));
    outcomes = ranks.round();
    ASSERT_EQ(outcomes[0].ready.size(), 1U);
    EXPECT_TRUE(outcomes[0].ready[0].status.ok());
  }
}

TEST_P(NegotiatorTest, ACachedSignatureMayChangeOnOneRankFirst) {
  const int size = GetParam();
  NegotiatingRanks ranks(size);
  ranks.submit_everywhere(make_request("w", {8}));
  ranks.round();
  ranks.submit(size - 1, make_request("w", {9}));
  EXPECT_EQ(ranks.round()[0].ready.size(), size == 1 ? 1U : 0U);
  if (size == 1) {
    return;
  }
  for (int rank = 0; rank < size - 1; ++rank) {
    ranks.submit(rank, make_request("w", {9}));
  }
  const auto outcomes = ranks.round();
  ASSERT_EQ(outcomes[0].ready.size(), 1U);
  EXPECT_TRUE(outcomes[0].ready[0].status.ok());
}

TEST_P(NegotiatorTest, ABitWhoseSlotIsEvictedIsNotLost) {
  const int size = GetParam();
  NegotiatingRanks ranks(size, 1, 0, kPatience);
  ranks.submit_everywhere(make_request("a"));
  ranks.round();
  if (size > 1) {
    ranks.submit(0, make_request("a"));
    EXPECT_TRUE(ranks.round()[0].ready.empty());
  }
  for (std::uint64_t i = 0; i <= kPatience; ++i) {  // the last one takes the only slot
    EXPECT_FALSE(ranks.of(0).urgent());
    ranks.submit_everywhere(make_request("b" + std::to_string(i)));
    EXPECT_EQ(ranks.round()[0].ready.size(), 1U);
  }
  EXPECT_EQ(ranks.of(0).urgent(), size > 1);
  for (int rank = size > 1 ? 1 : 0; rank < size; ++rank) {
    ranks.submit(rank, make_request("a"));
  }
  EXPECT_EQ(ranks.round()[0].ready.size(), 1U);
  EXPECT_FALSE(ranks.of(0).urgent());
}

/// The step's names are in the order of the step in every step: the worst for a cache that forgets
/// what was used longest ago.
TEST_P(NegotiatorTest, MoreNamesThanTheCacheHoldsAreSoonBits) {
  for (const bool one_round : {true, false}) {
    NegotiatingRanks ranks(GetParam(), 8);
    std::size_t bytes = 0;
    for (int step = 0; step < 6; ++step) {
      bytes = 0;
      for (int i = 0; i < 30; ++i) {
        ranks.submit_everywhere(make_request("gradient." + std::to_string(i)));
        if (!one_round || i == 29) {
          bytes += ranks.begin_round()[0].size();
          ranks.finish_round();
        }
      }
    }
    EXPECT_EQ(bytes, one_round ? 24U : 30 * 24U) << "bits only";
  }
}

TEST_P(NegotiatorTest, ParametersSwitchOnAllRanksInTheSameRound) {
  const int size = GetParam();
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    NegotiatingRanks ranks(size, 4096, seed);
    std::uint32_t epoch = 0;
    for (int i = 0; i < 20; ++i) {
      std::uint64_t expected = ranks.of(0).parameters().unit_bytes;
      bool proposed = false;
      for (int rank = size - 1; rank >= 0; --rank) {
        if (random() % 3 == 0) {
          proposed = true;
          expected = 1000 + random() % 1000;
          ranks.of(rank).propose({77, expected, 1});
          EXPECT_TRUE(ranks.of(rank).urgent());
        }
      }
      epoch += proposed ? 1 : 0;
      for (const RoundOutcome& outcome : ranks.round()) {
        EXPECT_EQ(outcome.parameters_changed, proposed);
      }
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(ranks.of(rank).parameters().epoch, epoch);
        EXPECT_EQ(ranks.of(rank).parameters().unit_bytes, expected);
        EXPECT_FALSE(ranks.of(rank).urgent());
      }
    }
  }
}

TEST_P(NegotiatorTest, AStallQueryIsAnsweredByEveryRank) {
  const int size = GetParam();
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    NegotiatingRanks ranks(size, 2, seed);
    for (int i = 0; i < 3; ++i) {  // bits, requests and fresh submissions at once
      for (int rank = 0; rank < size; ++rank) {
        for (const char* name : {"a", "b", "c", "d"}) {
          const auto pending = ranks.pending(rank);
          if (random() % 2 == 0 &&
              std::find(pending.begin(), pending.end(), name) == pending.end()) {
            ranks.submit(rank, make_request(name));
          }
        }
      }
      ranks.of(static_cast<int>(random() % static_cast<std::uint32_t>(size))).ask_for_stalls();
      EXPECT_TRUE(ranks.round()[0].answers.ranks.empty() || i > 0);
      std::vector<std::vector<std::string>> expected;
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_TRUE(ranks.of(rank).urgent()) << "an answer is due";
        expected.push_back(ranks.pending(rank));
      }
      for (const RoundOutcome& outcome : ranks.round()) {
        ASSERT_EQ(outcome.answers.ranks, RankSet(0, size - 1));
        ASSERT_TRUE(outcome.answers.complete);
        std::vector<std::vector<std::string>> answered(expected.size());
        for (const PendingName& name : outcome.answers.names) {
          name.ranks.for_each(
              [&](int rank) { answered[static_cast<std::size_t>(rank)].push_back(name.label); });
        }
        EXPECT_EQ(answered, expected);
      }
    }
  }
}

TEST_P(NegotiatorTest, ARequestOfAnUnknownRankIsAnError) {
  NegotiatingRanks ranks(GetParam());
  for (const int rank : {GetParam(), kMostRanks - 1}) {
    RoundMessage message;
    message.requests.emplace_back(make_request("x"), rank, 0);
    Bytes bytes;
    message.encode(bytes);
    EXPECT_THROW(ranks.of(0).apply(bytes), Error);
  }
}

TEST_P(NegotiatorTest, ABitThatNobodySetIsAnError) {
  NegotiatingRanks ranks(GetParam());
  RoundMessage message;
  message.ready.grow(64);
  message.ready.set(3);
  Bytes bytes;
  message.encode(bytes);
  EXPECT_THROW(ranks.of(0).apply(bytes), Error);
}

INSTANTIATE_TEST_SUITE_P(Sizes, NegotiatorTest, testing::Values(1, 2, 4, 7));

}  // namespace
}  // namespace aiacc
