#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/negotiator.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {

/// All ranks' negotiators, and the rounds between them without any transport.
class NegotiatingRanks {
 public:
  explicit NegotiatingRanks(int size,
                            std::size_t capacity = 4096,
                            std::uint32_t seed = 0,
                            std::uint64_t patience = ResponseCache::kPatience)
      : random_(seed), alive_(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      negotiators_.push_back(
          std::make_unique<Negotiator>(rank, size, capacity, Parameters{0, 1 << 20, 1}, patience));
    }
  }

  int size() const { return static_cast<int>(negotiators_.size()); }
  Negotiator& of(int rank) { return *negotiators_[static_cast<std::size_t>(rank)]; }

  /// What it returns lives until it comes back, and no longer.
  Submitted* submit(int rank, const Request& request) {
    auto kept = std::make_unique<Submitted>(Submitted{request});
    Submitted* submitted = kept.get();
    alive_[static_cast<std::size_t>(rank)][submitted] = std::move(kept);
    of(rank).submit(*submitted);
    return submitted;
  }
  void submit_everywhere(const Request& request) {
    for (int rank = 0; rank < size(); ++rank) {
      submit(rank, request);
    }
  }
  /// Registers a process set with all ranks; its id.
  std::uint32_t add_set(const std::vector<int>& ranks) {
    Request request = make_request("process_set.noname.0", OpKind::kAddProcessSet, {});
    request.numbers.assign(ranks.begin(), ranks.end());
    request.cacheable = false;
    submit_everywhere(request);
    const auto outcomes = round();
    EXPECT_EQ(outcomes[0].ready.size(), 1U);
    EXPECT_TRUE(outcomes[0].ready[0].status.ok()) << outcomes[0].ready[0].status.message();
    return static_cast<std::uint32_t>(outcomes[0].ready[0].value);
  }

  /// What every rank contributes to the next round, which `finish_round` ends.
  const std::vector<Bytes>& begin_round() {
    shares_.resize(negotiators_.size());
    for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
      negotiators_[rank]->contribute(shares_[rank]);
    }
    return shares_;
  }
  /// Ranks fold the shares in orders of their own, as transports may; all get the same bytes.
  std::vector<RoundOutcome> finish_round() {
    constexpr std::size_t kMostOrders = 8;  // with many ranks some of them are enough
    std::vector<RoundOutcome> outcomes;
    for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
      if (rank < kMostOrders) {
        std::vector<Bytes> order = shares_;
        std::shuffle(order.begin(), order.end(), random_);
        for (std::size_t i = 1; i < order.size(); ++i) {
          combine_rounds(order[0], order[i]);
        }
        if (rank == 0) {
          result_ = order[0];
        }
        EXPECT_TRUE(order[0] == result_) << "rank " << rank << " has another result";
      }
      outcomes.push_back(negotiators_[rank]->apply(result_));
      for (const Response& response : outcomes.back().ready) {
        if (response.submitted != nullptr) {
          EXPECT_EQ(alive_[rank].erase(response.submitted), 1U) << "it came back twice";
        }
      }
    }
    return outcomes;
  }

  /// The message of all ranks in the last round.
  const Bytes& result() const { return result_; }
  std::vector<RoundOutcome> round() {
    begin_round();
    return finish_round();
  }

 private:
  std::mt19937 random_;
  std::vector<std::unique_ptr<Negotiator>> negotiators_;
  std::vector<std::map<Submitted*, std::unique_ptr<Submitted>>> alive_;
  std::vector<Bytes> shares_;
  Bytes result_;
};

}  // namespace aiacc
