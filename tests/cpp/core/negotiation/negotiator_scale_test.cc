// Many ranks, many names: equal requests are one, rounds have a budget. Compared with a reference
// that keeps every request of every rank.

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/negotiator.h"
#include "csrc/core/negotiation/request_matching.h"
#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

/// What becomes of a name, for every rank.
struct Decision {
  std::string name;
  std::string error;
  std::vector<std::int64_t> rows;
  std::vector<std::int32_t> devices;
};

bool operator==(const Decision& a, const Decision& b) {
  return a.name == b.name && a.error == b.error && a.rows == b.rows && a.devices == b.devices;
}

/// Every rank's requests, each for itself, in the order of ranks.
class Reference {
 public:
  explicit Reference(int size) : size_(static_cast<std::size_t>(size)) {}

  std::vector<Decision> round(const std::vector<std::vector<Request>>& by_rank) {
    std::vector<std::string> touched;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      for (const Request& request : by_rank[rank]) {
        auto& waiting = waiting_[request.name];
        waiting.resize(size_);
        waiting[rank] = request;
        touched.erase(std::remove(touched.begin(), touched.end(), request.name), touched.end());
        touched.push_back(request.name);
      }
    }
    std::vector<Decision> decisions;
    for (const std::string& name : touched) {
      const auto& waiting = waiting_[name];
      if (std::all_of(waiting.begin(), waiting.end(), [](const auto& one) { return one; })) {
        decisions.push_back(decide(name, waiting));
        waiting_.erase(name);
      }
    }
    return decisions;
  }

 private:
  static Decision decide(const std::string& name,
                         const std::vector<std::optional<Request>>& waiting) {
    std::vector<Request> requests;
    std::vector<int> ranks;
    for (const auto& request : waiting) {
      ranks.push_back(static_cast<int>(requests.size()));
      requests.push_back(*request);
    }
    Decision decision;
    decision.name = name;
    decision.error = validate(requests, ranks).message();
    for (const Request& request : requests) {
      if (decision.error.empty() && request.kind == OpKind::kAllgather) {
        decision.rows.push_back(request.shape.front());
      }
      if (decision.error.empty() && request.on_gpu()) {
        decision.devices.push_back(request.device);
      }
    }
    return decision;
  }

  const std::size_t size_;
  std::map<std::string, std::vector<std::optional<Request>>> waiting_;
};

class NegotiatorScaleTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

/// Some names are alike on all ranks, some are not; ranks are not equally far.
std::vector<std::vector<Request>> random_job(int size, std::size_t names, std::mt19937& random) {
  std::vector<std::vector<Request>> by_rank(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < names; ++i) {
    const OpKind kind = random() % 3 == 0 ? OpKind::kAllgather : OpKind::kAllreduce;
    const bool on_gpu = random() % 2 == 0;
    const std::uint32_t odd = random() % 5;
    const auto one = static_cast<int>(random() % static_cast<std::uint32_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      Request request = make_request("t" + std::to_string(i), kind, {4, 2});
      request.device = on_gpu ? rank % 8 : -1;
      if (kind == OpKind::kAllgather && i % 2 == 0) {
        request.shape[0] = rank % 7;
      }
      if (odd == 0 && rank == one) {
        request.shape[1] = 3;
      }
      if (odd == 1 && rank % 3 == one % 3) {
        request.dtype = DataType::kInt8;
      }
      if (odd == 2 && rank >= one) {
        request.device = request.on_gpu() ? -1 : 0;
      }
      by_rank[static_cast<std::size_t>(rank)].push_back(request);
    }
  }
  const bool shuffled = random() % 2 == 0;
  for (auto& requests : by_rank) {
    if (shuffled) {
      std::shuffle(requests.begin(), requests.end(), random);
    }
  }
  return by_rank;
}

TEST_P(NegotiatorScaleTest, DecidesWhatAProtocolOfSingleRequestsDecides) {
  const bool many = size() > 100;
  for (std::uint32_t seed = 0; seed < (many ? 1U : size() > 10 ? 6U : 60U); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto job = random_job(size(), many ? 5 : 12, random);
    // All negotiators agree, which other tests show; with many ranks some of them are enough.
    std::vector<std::unique_ptr<Negotiator>> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      ranks.push_back(std::make_unique<Negotiator>(rank, size(), 0, Parameters{0, 1 << 20, 1}));
    }
    Reference reference(size());
    std::vector<std::size_t> sent(job.size());
    std::size_t decided = 0;
    while (decided < job[0].size()) {
      std::vector<std::vector<Request>> fresh(job.size());
      std::vector<Bytes> shares(job.size());
      for (std::size_t rank = 0; rank < job.size(); ++rank) {
        for (std::size_t left = random() % 6; left > 0 && sent[rank] < job[rank].size(); --left) {
          const Request& request = job[rank][sent[rank]++];
          fresh[rank].push_back(request);
          ranks[rank]->submit(request, sent[rank]);
        }
        ranks[rank]->contribute(shares[rank]);
      }
      const std::vector<Decision> expected = reference.round(fresh);
      std::shuffle(shares.begin(), shares.end(), random);
      for (std::size_t i = 1; i < shares.size(); ++i) {
        combine_rounds(shares[0], shares[i]);
      }
      for (std::size_t rank = 0; rank < job.size(); ++rank) {
        std::vector<Decision> decisions;
        for (const Response& response : ranks[rank]->apply(shares[0]).ready) {
          decisions.push_back(
              {job[rank][response.ticket - 1].name,
               response.status.message(),
               response.first_extents,
               response.devices == nullptr ? DevicePlacement() : *response.devices});
        }
        ASSERT_EQ(decisions.size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(decisions[i].name, expected[i].name) << "rank " << rank;
          ASSERT_EQ(decisions[i].error, expected[i].error);
          ASSERT_TRUE(decisions[i] == expected[i]) << expected[i].name;
        }
      }
      decided += expected.size();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NegotiatorScaleTest, testing::Values(1, 2, 3, 64, 65, 1024));

/// So long that few of them fill a round.
std::string long_name(const std::string& start) { return start + std::string(60000, '.'); }

constexpr int kMany = 200;

class NegotiatorBudgetTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }

  /// Rounds until nothing is urgent; how many names were ready on rank 0. No round is too large.
  static std::size_t urgent_rounds(NegotiatingRanks& ranks, std::size_t& rounds) {
    std::size_t ready = 0;
    for (bool more = true; more; ++rounds) {
      const auto outcomes = ranks.round();
      EXPECT_LE(ranks.result().size(), kRoundBudget + (std::size_t{1} << 17));
      for (const Response& response : outcomes[0].ready) {
        EXPECT_TRUE(response.status.ok()) << response.status.message();
      }
      ready += outcomes[0].ready.size();
      more = false;
      for (int rank = 0; rank < ranks.size(); ++rank) {
        more = more || ranks.of(rank).urgent();
      }
    }
    return ready;
  }
};

TEST_P(NegotiatorBudgetTest, WhatDoesNotFitIntoARoundComesInTheNextAtOnce) {
  NegotiatingRanks ranks(size());
  for (int i = 0; i < kMany; ++i) {
    ranks.submit_everywhere(make_request(long_name(std::to_string(i))));
  }
  std::size_t rounds = 0;
  EXPECT_EQ(urgent_rounds(ranks, rounds), std::size_t{kMany});
  EXPECT_GE(rounds, kMany * 60000U / kRoundBudget);
  for (int i = 0; i < kMany; ++i) {
    ranks.submit_everywhere(make_request(long_name(std::to_string(i))));
  }
  EXPECT_LT(ranks.begin_round()[0].size(), 100U) << "names that were cut have slots, too";
  EXPECT_EQ(ranks.finish_round()[0].ready.size(), std::size_t{kMany});
}

TEST_P(NegotiatorBudgetTest, DifferentNamesOfAllRanksAllGetThrough) {
  NegotiatingRanks ranks(size());
  const auto submit = [&](int rank, int shift) {
    for (int i = 0; i < kMany / 4; ++i) {
      const int owner = (rank + shift) % size();
      ranks.submit(rank, make_request(long_name(std::to_string(owner) + "." + std::to_string(i))));
    }
  };
  std::size_t rounds = 0;
  std::size_t ready = 0;
  for (int shift = 0; shift < size(); ++shift) {
    for (int rank = 0; rank < size(); ++rank) {
      submit(rank, shift);
    }
    ready += urgent_rounds(ranks, rounds);
  }
  EXPECT_EQ(ready, static_cast<std::size_t>(size()) * (kMany / 4));
}

/// The join is small; what was submitted before it is not.
TEST_P(NegotiatorBudgetTest, AJoinDoesNotOvertakeWhatWasSubmittedBefore) {
  NegotiatingRanks ranks(size());
  // Broadcasts: nobody can answer them for a rank that has joined.
  for (int rank = 0; rank < size(); ++rank) {
    for (int i = 0; i < kMany; ++i) {
      ranks.submit(rank, make_request(long_name(std::to_string(i)), OpKind::kBroadcast, {4}));
    }
    if (rank % 2 == 0) {
      ranks.submit(rank, make_request("", OpKind::kJoin, {}));
    }
  }
  std::size_t rounds = 0;
  EXPECT_EQ(urgent_rounds(ranks, rounds), std::size_t{kMany} + (size() == 1 ? 1 : 0));
}

TEST_P(NegotiatorBudgetTest, TheRemovalOfASetDoesNotOvertakeWhatWasSubmittedBefore) {
  if (size() == 1) {
    GTEST_SKIP() << "the only rank is set 0";
  }
  NegotiatingRanks ranks(size());
  const std::uint32_t set = ranks.add_set({0});
  for (int rank = 0; rank < size(); ++rank) {
    for (int i = 0; rank == 0 && i < kMany; ++i) {
      Request request = make_request(long_name(std::to_string(i)));
      request.process_set = set;
      ranks.submit(rank, request);
    }
    Request removal = make_request("process_set.noname.1", OpKind::kRemoveProcessSet, {});
    removal.numbers = {static_cast<std::int64_t>(set)};
    removal.cacheable = false;
    ranks.submit(rank, removal);
  }
  std::size_t rounds = 0;
  EXPECT_EQ(urgent_rounds(ranks, rounds), std::size_t{kMany} + 1);
}

/// Ranks with more to say are not stuck, whatever their threads do.
TEST_P(NegotiatorBudgetTest, ARoundThatWasCutFailsNothing) {
  NegotiatingRanks ranks(size());
  for (int rank = 0; rank < size(); ++rank) {
    ranks.set_stuck(rank, true);
    for (int i = 0; i < kMany; ++i) {
      const int turn = (i + rank * 50) % kMany;  // first come other ones on every rank
      Request request = make_request(long_name(std::to_string(turn)));
      request.cacheable = false;
      ranks.submit(rank, request);
    }
  }
  std::size_t rounds = 0;
  EXPECT_EQ(urgent_rounds(ranks, rounds), std::size_t{kMany});
}

INSTANTIATE_TEST_SUITE_P(Sizes, NegotiatorBudgetTest, testing::Values(1, 2, 5));

}  // namespace
}  // namespace aiacc
