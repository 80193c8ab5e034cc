#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/negotiator.h"
#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

Request request_in(std::uint32_t process_set, const std::string& name) {
  Request request = make_request(name);
  request.process_set = process_set;
  return request;
}

/// A random subset, ascending, not empty.
std::vector<int> some_ranks(int size, std::mt19937& random) {
  std::vector<int> ranks;
  while (ranks.empty()) {
    for (int rank = 0; rank < size; ++rank) {
      if (random() % 2 == 0) {
        ranks.push_back(rank);
      }
    }
  }
  return ranks;
}

/// Plays random submissions in overlapping sets against a model.
class Simulation {
 public:
  Simulation(int size, std::size_t capacity, std::uint32_t seed)
      : random_(seed), ranks_(size, capacity, seed) {
    members_[0] = *ranks_.of(0).process_sets().members(0);
    for (int i = 0; i < 3; ++i) {
      add();
    }
  }

  void play() {
    for (int step = 0; step < 120; ++step) {
      for (std::size_t left = random_() % 8; left > 0; --left) {
        submit();
      }
      check(ranks_.round());
      if (testing::Test::HasFailure()) {
        return;
      }
      if (random_() % 16 == 0) {
        add();
      }
    }
    finish();
  }

 private:
  /// Set and name.
  using Key = std::pair<std::uint32_t, std::string>;

  void add() {
    const std::vector<int> ranks = some_ranks(ranks_.size(), random_);
    for (const auto& [id, members] : members_) {
      if (members == ranks) {
        return;
      }
    }
    if (pending_.empty()) {
      members_[ranks_.add_set(ranks)] = ranks;
    }
  }

  void submit() {
    auto set =
        std::next(members_.begin(), static_cast<std::ptrdiff_t>(random_() % members_.size()));
    const int rank = set->second[random_() % set->second.size()];
    submit(rank, {set->first, std::string(1, static_cast<char>('a' + random_() % 4))});
  }

  void submit(int rank, const Key& key) {
    auto& tickets = pending_[key];
    if (tickets.count(rank) == 0) {
      Request request = request_in(key.first, key.second);
      if (key.second == "d") {
        request.more = {{DataType::kInt8, {5}}, {DataType::kFloat64, {2, 2}}};
      }
      request.cacheable = key.second != "c";
      tickets[rank] = ranks_.submit(rank, request);
    }
  }

  /// Everything that is complete is ready in this round or, if its slot was lost, the next one;
  /// nothing else is; and ranks see what they share in the same order.
  void check(const std::vector<RoundOutcome>& outcomes) {
    std::vector<std::vector<Key>> orders(outcomes.size());
    std::map<Key, std::size_t> ready;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      for (const Response& response : outcomes[static_cast<std::size_t>(rank)].ready) {
        ASSERT_TRUE(response.status.ok()) << response.status.message();
        const Key key = key_of(rank, response.ticket);
        orders[static_cast<std::size_t>(rank)].push_back(key);
        ++ready[key];
      }
    }
    for (const auto& [key, count] : ready) {
      EXPECT_EQ(count, members_[key.first].size()) << label_of(key.first, key.second);
      pending_.erase(key);
      late_.erase(key);
    }
    for (const auto& [key, tickets] : pending_) {
      if (tickets.size() == members_[key.first].size()) {
        EXPECT_LT(late_[key]++, 1) << label_of(key.first, key.second) << " is late";
      }
    }
    for (std::size_t a = 0; a < orders.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        EXPECT_EQ(shared(orders[a], static_cast<int>(b)), shared(orders[b], static_cast<int>(a)));
      }
    }
  }

  std::vector<Key> shared(const std::vector<Key>& order, int with) {
    std::vector<Key> result;
    for (const Key& key : order) {
      if (index_in(members_[key.first], with) >= 0) {
        result.push_back(key);
      }
    }
    return result;
  }

  Key key_of(int rank, std::uint64_t ticket) {
    for (const auto& [key, tickets] : pending_) {
      const auto found = tickets.find(rank);
      if (found != tickets.end() && found->second == ticket) {
        return key;
      }
    }
    ADD_FAILURE() << "rank " << rank << " got the unknown ticket " << ticket;
    return {};
  }

  void finish() {
    std::vector<Key> keys;
    for (const auto& [key, tickets] : pending_) {
      keys.push_back(key);
    }
    for (const Key& key : keys) {
      for (const int rank : members_[key.first]) {
        submit(rank, key);
      }
    }
    check(ranks_.round());
    check(ranks_.round());
    EXPECT_TRUE(pending_.empty());
  }

  std::mt19937 random_;
  NegotiatingRanks ranks_;
  std::map<std::uint32_t, std::vector<int>> members_;
  std::map<Key, std::map<int, std::uint64_t>> pending_;  ///< tickets by rank
  std::map<Key, int> late_;
};

class NegotiatorSetsTest : public testing::TestWithParam<int> {};

TEST_P(NegotiatorSetsTest, SetsAgreeWhateverTheOrderOfArrival) {
  for (const std::size_t capacity :
       {std::size_t{0}, std::size_t{2}, std::size_t{5}, std::size_t{4096}}) {
    for (std::uint32_t seed = 0; seed < 25; ++seed) {
      SCOPED_TRACE("capacity " + std::to_string(capacity) + ", seed " + std::to_string(seed));
      Simulation(GetParam(), capacity, seed).play();
      if (HasFailure()) {
        return;
      }
    }
  }
}

TEST_P(NegotiatorSetsTest, AKnownTensorOfASetIsOneBitAndOneRound) {
  const int size = GetParam();
  if (size < 2) {
    GTEST_SKIP() << "a set needs a rank outside";
  }
  NegotiatingRanks ranks(size);
  const std::uint32_t id = ranks.add_set({size - 1});
  for (int i = 0; i < 3; ++i) {
    ranks.submit_to_set(request_in(id, "a.rather.long.name.of.a.tensor"));
    if (i > 0) {
      EXPECT_FALSE(ranks.of(size - 1).urgent());
    }
    const auto outcomes = ranks.round();
    EXPECT_EQ(outcomes.back().ready.size(), 1U);
    EXPECT_TRUE(outcomes[0].ready.empty());
  }
}

TEST_P(NegotiatorSetsTest, RanksThatAreASetAlreadyAreRefusedEverywhere) {
  const int size = GetParam();
  NegotiatingRanks ranks(size);
  Request request = make_request("process_set.noname.0", OpKind::kAddProcessSet, {});
  request.cacheable = false;
  for (int rank = 0; rank < size; ++rank) {
    request.numbers.push_back(rank);
  }
  ranks.submit_everywhere(request);
  for (const RoundOutcome& outcome : ranks.round()) {
    ASSERT_EQ(outcome.ready.size(), 1U);
    EXPECT_EQ(outcome.ready[0].status.code(), Code::kInvalidArgument);
    EXPECT_NE(outcome.ready[0].status.message().find("process set 0"), std::string::npos);
  }
}

TEST_P(NegotiatorSetsTest, RanksMustNameTheSameSet) {
  const int size = GetParam();
  if (size < 2) {
    GTEST_SKIP() << "needs two ranks";
  }
  NegotiatingRanks ranks(size);
  for (int rank = 0; rank < size; ++rank) {
    Request request = make_request("process_set.noname.0", OpKind::kAddProcessSet, {});
    request.cacheable = false;
    request.numbers = {rank == 0 ? 0 : 1};
    ranks.submit(rank, request);
  }
  for (const RoundOutcome& outcome : ranks.round()) {
    ASSERT_EQ(outcome.ready.size(), 1U);
    EXPECT_EQ(outcome.ready[0].status.code(), Code::kMismatch);
    EXPECT_NE(outcome.ready[0].status.message().find("rank 1 submitted process set [1]"),
              std::string::npos)
        << outcome.ready[0].status.message();
  }
}

/// Removal with a request, a cached bit and a submission that was never sent under way.
TEST_P(NegotiatorSetsTest, WhatIsUnderWayInARemovedSetFailsOnItsMembers) {
  const int size = GetParam();
  if (size < 2) {
    GTEST_SKIP() << "a set needs two members";
  }
  NegotiatingRanks ranks(size, 3);
  std::vector<int> members = {0, size - 1};
  const std::uint32_t id = size == 2 ? 0 : ranks.add_set(members);
  if (id == 0) {
    GTEST_SKIP() << "these two are all ranks";
  }
  ranks.submit_to_set(request_in(id, "cached"));
  ranks.round();
  ranks.submit(0, request_in(id, "cached"));
  ranks.submit(size - 1, request_in(id, "new"));
  ranks.round();
  Request removal = make_request("process_set.noname.1", OpKind::kRemoveProcessSet, {});
  removal.cacheable = false;
  removal.numbers = {id};
  ranks.submit_everywhere(removal);
  std::map<std::string, int> failures;
  const auto count = [&](const std::vector<RoundOutcome>& outcomes) {
    for (const RoundOutcome& outcome : outcomes) {
      for (const Response& response : outcome.ready) {
        if (!response.status.ok()) {
          EXPECT_EQ(response.status.code(), Code::kMismatch);
          for (const char* name : {"'cached (", "'new ("}) {
            failures[name] += response.status.message().find(name) != std::string::npos ? 1 : 0;
          }
        } else {
          EXPECT_EQ(response.value, 1);
        }
      }
    }
  };
  count(ranks.round());
  count(ranks.urgent_rounds());
  EXPECT_EQ(failures["'cached ("], 1);
  EXPECT_EQ(failures["'new ("], 1);
  EXPECT_EQ(ranks.of(0).process_sets().members(id), nullptr);
  // Its slot serves other sets again, with the right default on every rank.
  for (int i = 0; i < 3; ++i) {
    ranks.submit_everywhere(request_in(0, "after"));
    for (const RoundOutcome& outcome : ranks.round()) {
      ASSERT_EQ(outcome.ready.size(), 1U);
    }
    ranks.submit(0, request_in(0, "lonely" + std::to_string(i)));
    EXPECT_TRUE(ranks.round()[0].ready.empty());
  }
  ranks.submit_everywhere(removal);
  for (const RoundOutcome& outcome : ranks.round()) {
    ASSERT_EQ(outcome.ready.size(), 1U);
    EXPECT_EQ(outcome.ready[0].value, 0) << "there is no such set any more";
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NegotiatorSetsTest, testing::Values(1, 2, 4, 7));

}  // namespace
}  // namespace aiacc
