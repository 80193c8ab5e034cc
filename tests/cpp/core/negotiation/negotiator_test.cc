// What rounds cost, and how much fits into one. What ranks are told is in
// negotiator_random_test.cc.

#include "csrc/core/negotiation/negotiator.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

/// A round of bits alone: its header and 64 slots.
constexpr std::size_t kBitsOnly = 24;

/// The step's names are in the order of the step in every step: the worst for a cache that forgets
/// what was used longest ago.
TEST(NegotiatorCost, RepeatedNamesAreBitsAlsoMoreThanTheCacheHolds) {
  for (const std::size_t capacity : {8, 4096}) {
    for (const bool one_round : {true, false}) {
      NegotiatingRanks ranks(2, capacity);
      std::size_t bytes = 0;
      for (int step = 0; step < (capacity == 8 ? 6 : 2); ++step) {
        bytes = 0;
        for (int i = 0; i < 30; ++i) {
          ranks.submit_everywhere(make_request("gradient." + std::to_string(i)));
          if (!one_round || i == 29) {
            bytes += ranks.begin_round()[0].size();
            ranks.finish_round();
          }
        }
      }
      EXPECT_EQ(bytes, one_round ? kBitsOnly : 30 * kBitsOnly);
    }
  }
}

/// Others are not needed for it.
TEST(NegotiatorCost, ARoundSaysWhetherItFormsASet) {
  NegotiatingRanks ranks(2);
  Request request = make_request("form_process_set.s", OpKind::kFormProcessSet, {});
  request.numbers = {0};
  request.cacheable = false;
  for (const bool forms : {false, true, false}) {
    if (forms) {
      ranks.submit(0, request);
    }
    EXPECT_EQ(flags_of(ranks.begin_round()[0]) & kFlagForming, forms ? kFlagForming : 0U);
    ranks.finish_round();
  }
}

/// Two names with one digest, of which there are few.
const std::string kTwins[] = {R"(<?WEU-%h~(\7,aHY*V4Mi6kc*V)", R"(7!,Y(k9a3*Q!--[+)Sd?,o#;%m)"};

TEST(NegotiatorDigests, TwoNamesWithOneDigestAreToldApart) {
  ASSERT_EQ(digest_of(kTwins[0]), digest_of(kTwins[1]));
  NegotiatingRanks apart(3);
  for (int rank = 0; rank < 3; ++rank) {
    apart.submit(rank, make_request(kTwins[rank / 2]));
  }
  EXPECT_TRUE(apart.round()[0].ready.empty()) << "the texts are on their way";
  for (const RoundOutcome& outcome : apart.round()) {
    expect_error(outcome.ready.at(0).status,
                 Code::kMismatch,
                 {"rank 0 submitted name '" + kTwins[0], "rank 2 submitted name '" + kTwins[1]});
  }
  for (const bool cached : {false, true}) {
    NegotiatingRanks both(2);
    const auto submit_both = [&] {
      both.submit_everywhere(make_request(kTwins[0]));
      if (cached) {
        both.round();
      }
      both.submit_everywhere(make_request(kTwins[1]));
      both.round();
    };
    expect_error(status_of(submit_both), Code::kMismatch, {kTwins[0], kTwins[1], "another name"});
  }
}

/// So many that they need several rounds.
constexpr int kMany = 45'000;

Request numbered(int number, const std::string& start = "", OpKind kind = OpKind::kAllreduce) {
  return make_request(start + std::to_string(number), kind, {4});
}

class NegotiatorBudgetTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }

  /// Calls each(i, rank) for so many i, of one rank after the other.
  void submit(const std::function<void(int, int)>& each) {
    for (int rank = 0; rank < size(); ++rank) {
      for (int i = 0; i < kMany; ++i) {
        each(i, rank);
      }
    }
  }

  /// Rounds until nothing is urgent; how many names were ready on rank 0. No round is too large.
  std::size_t urgent_rounds() {
    std::size_t ready = 0;
    bool more = true;
    for (rounds_ = 0; more; ++rounds_) {
      const auto outcomes = ranks_.round();
      EXPECT_LE(ranks_.result().size(), kRoundBudget + (std::size_t{1} << 17));
      for (const Response& response : outcomes[0].ready) {
        EXPECT_TRUE(response.status.ok()) << response.status.message();
      }
      ready += outcomes[0].ready.size();
      more = false;
      for (int rank = 0; rank < size(); ++rank) {
        more = more || ranks_.of(rank).urgent();
      }
    }
    return ready;
  }

  NegotiatingRanks ranks_{GetParam(), kMany};
  std::size_t rounds_ = 0;
};

TEST_P(NegotiatorBudgetTest, WhatDoesNotFitIntoARoundComesInTheNextAtOnce) {
  submit([&](int i, int rank) { ranks_.submit(rank, numbered(i)); });
  EXPECT_EQ(urgent_rounds(), std::size_t{kMany});
  EXPECT_GE(rounds_, 2U);
  submit([&](int i, int rank) { ranks_.submit(rank, numbered(i)); });
  EXPECT_LT(ranks_.begin_round()[0].size(), kMany / 8U + 100U)
      << "names that were cut have slots, too";
  EXPECT_EQ(ranks_.finish_round()[0].ready.size(), std::size_t{kMany});
}

TEST_P(NegotiatorBudgetTest, DifferentNamesOfAllRanksAllGetThrough) {
  std::size_t ready = 0;
  for (int shift = 0; shift < size(); ++shift) {
    submit([&](int i, int rank) {
      if (i < kMany / 2) {
        ranks_.submit(rank, numbered(i, std::to_string((rank + shift) % size()) + "."));
      }
    });
    ready += urgent_rounds();
  }
  EXPECT_EQ(ready, static_cast<std::size_t>(size()) * (kMany / 2));
}

/// The join is small; what was submitted before it is not, and needs the rank that joins.
TEST_P(NegotiatorBudgetTest, AJoinDoesNotOvertakeWhatWasSubmittedBefore) {
  submit([&](int i, int rank) {
    ranks_.submit(rank, numbered(i, "", OpKind::kBroadcast));
    if (i == kMany - 1 && rank % 2 == 0) {
      ranks_.submit(rank, make_request("", OpKind::kJoin, {}));
    }
  });
  EXPECT_EQ(urgent_rounds(), std::size_t{kMany} + (size() == 1 ? 1 : 0));
}

TEST_P(NegotiatorBudgetTest, TheRemovalOfASetDoesNotOvertakeWhatWasSubmittedBefore) {
  if (size() == 1) {
    GTEST_SKIP() << "the only rank is set 0";
  }
  Request removal = make_request("process_set.noname.1", OpKind::kRemoveProcessSet, {});
  removal.cacheable = false;
  removal.numbers = {ranks_.add_set({0})};
  submit([&](int i, int rank) {
    Request request = numbered(i);
    request.process_set = static_cast<std::uint32_t>(removal.numbers[0]);
    if (rank == 0) {
      ranks_.submit(rank, request);
    }
    if (i == kMany - 1) {
      ranks_.submit(rank, removal);
    }
  });
  EXPECT_EQ(urgent_rounds(), std::size_t{kMany} + 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, NegotiatorBudgetTest, testing::Values(1, 3));

}  // namespace
}  // namespace aiacc
