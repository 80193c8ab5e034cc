// What a correct rank would not send: an error on every honest rank, by the rank that sent it.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/negotiator.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

constexpr int kSize = 3;
constexpr int kLiar = 2;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// Ranks 0 and 1 submit `honest`, rank 2 says what `lie` makes of it. The errors of the honest
/// ones.
std::vector<Status> outcome_of(const Request& honest,
                               const std::function<void(RoundMessage&)>& lie) {
  std::vector<Bytes> shares(kSize);
  std::vector<Negotiator> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back(rank, kSize, 16, Parameters{0, 1 << 20, 1});
    ranks.back().submit(honest, 1);
    ranks.back().contribute(shares[static_cast<std::size_t>(rank)]);
  }
  RoundMessage message;
  message.decode(shares[kLiar]);
  lie(message);
  message.encode(shares[kLiar]);
  std::vector<Status> statuses;
  for (int rank = 0; rank < kLiar; ++rank) {
    try {
      Bytes combined = shares[0];
      combine_rounds(combined, shares[1], {1, 1});
      combine_rounds(combined, shares[kLiar], {kLiar, kLiar});
      const RoundOutcome& outcome = ranks[static_cast<std::size_t>(rank)].apply(combined);
      statuses.push_back(outcome.ready.empty() ? Status() : outcome.ready[0].status);
    } catch (const Error& error) {
      statuses.push_back(error.status());
    }
  }
  return statuses;
}

/// The liar's request is `change` of that of the others.
std::vector<Status> outcome_of(Request honest, const std::function<void(Request&)>& change) {
  return outcome_of(honest, [&](RoundMessage& message) {
    change(honest);
    message.requests = {SharedRequest(honest, kLiar, 0)};
  });
}

void expect_lost(const std::vector<Status>& statuses, const std::string& text) {
  ASSERT_EQ(2U, statuses.size());
  for (const Status& status : statuses) {
    EXPECT_EQ(Code::kPeerLost, status.code()) << status.message();
    EXPECT_NE(std::string::npos, status.message().find(text))
        << "'" << text << "' is not in: " << status.message();
  }
}

Request change_of_sets(OpKind kind, std::vector<std::int64_t> numbers) {
  Request request = make_request("process_set.noname.0.0", kind, {});
  request.cacheable = false;
  request.numbers = std::move(numbers);
  return request;
}

TEST(NegotiatorLies, TheTruthIsFine) {
  for (const Status& status : outcome_of(make_request("x"), [](Request&) {})) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(NegotiatorLies, AProcessSetOfNothing) {
  for (const OpKind kind : {OpKind::kRemoveProcessSet, OpKind::kAddProcessSet}) {
    for (const std::vector<std::int64_t>& numbers :
         {std::vector<std::int64_t>{}, {-1}, {kMost}, {2, 1}, {1, 1}, {0, 3}}) {
      const bool negative = !numbers.empty() && numbers[0] < 0;
      expect_lost(outcome_of(change_of_sets(kind, {1}), [&](Request& r) { r.numbers = numbers; }),
                  negative ? "negative" : "rank 2 sent ");
    }
  }
  expect_lost(outcome_of(change_of_sets(OpKind::kAddProcessSet, {0, 1}),
                         [](Request& r) { r.cacheable = true; }),
              "the next time");
  expect_lost(outcome_of(change_of_sets(OpKind::kFormProcessSet, {0, 1, 2}),
                         [](Request& r) { r.numbers = {0, 1}; }),
              "expected the sender's among them");
  expect_lost(outcome_of(make_request("x"),
                         [](Request& r) {
                           r = make_request("x", OpKind::kLeaveProcessSet, {});
                           r.cacheable = false;
                         }),
              "the set of all ranks");
}

TEST(NegotiatorLies, MoreRowsThanMemoryHolds) {
  for (const std::int64_t rows : {std::int64_t{-1}, std::int64_t{1} << 45, kMost}) {
    for (const OpKind kind : {OpKind::kAllgather, OpKind::kReducescatter, OpKind::kAllreduce}) {
      const auto statuses =
          outcome_of(make_request("x", kind, {2, 4}), [&](Request& r) { r.shape[0] = rows; });
      expect_lost(statuses, rows < 0 ? "negative" : "bytes");
    }
  }
  // What overflows to something small.
  expect_lost(outcome_of(make_request("x", OpKind::kAllgather, {2, 4}),
                         [](Request& r) { r.shape = {1, std::int64_t{1} << 62}; }),
              "bytes");
  expect_lost(outcome_of(make_request("x", {2}),
                         [](Request& r) { r.more.assign(4, {DataType::kInt8, {1LL << 45}}); }),
              "group");
}

TEST(NegotiatorLies, SplitsThatTheTensorHasNot) {
  Request honest = make_request("x", OpKind::kAlltoall, {3, 2});
  honest.numbers = {1, 1, 1};
  for (const std::vector<std::int64_t>& splits :
       {std::vector<std::int64_t>{}, {1, 1}, {1, 1, 2}, {kMost, kMost, 5}, {1, 1, 1, 0}}) {
    expect_lost(outcome_of(honest, [&](Request& r) { r.numbers = splits; }), "splits");
  }
}

TEST(NegotiatorLies, WhatNoRankSubmits) {
  Request broadcast = make_request("x", OpKind::kBroadcast, {2});
  expect_lost(outcome_of(broadcast, [](Request& r) { r.root = 7; }), "root_rank 7");
  expect_lost(outcome_of(make_request("x"), [](Request& r) { r.numbers = {4}; }), "numbers [4]");
  expect_lost(outcome_of(make_request("x", OpKind::kReducescatter, {2}),
                         [](Request& r) { r.op = ReduceOp::kMax; }),
              "op=Max");
  expect_lost(outcome_of(make_request("x"), [](Request& r) { r.wire = WireFormat::kFloat8E4M3; }),
              "wire");
}

TEST(NegotiatorLies, InTheNameOfAnotherRank) {
  const Request other = make_request("y");
  expect_lost(outcome_of(make_request("x"),
                         [&](RoundMessage& m) { m.requests = {SharedRequest(other, 0, 0)}; }),
              "cannot speak");
  expect_lost(outcome_of(make_request("x"), [&](RoundMessage& m) { m.answers.ranks = RankSet(1); }),
              "cannot speak");
  expect_lost(outcome_of(make_request("x"),
                         [&](RoundMessage& m) { m.proposal = Proposal{0, {1, 1 << 20, 1}}; }),
              "cannot speak");
}

/// Whatever way the round took, it must say about a rank what that rank has said.
TEST(NegotiatorLies, ARankKnowsItsOwnRequests) {
  Request request = make_request("x", OpKind::kAllgather, {2, 4});
  for (const int change : {0, 1, 2}) {
    Negotiator rank(0, 2, 16, Parameters{0, 1 << 20, 1});
    rank.submit(request, 1);
    Bytes share;
    rank.contribute(share);
    RoundMessage message;
    message.decode(share);
    Request changed = request;
    changed.shape[0] = change == 0 ? 2000 : 2;
    changed.name = change == 1 ? "y" : "x";
    message.requests = {SharedRequest(changed, 0, 0)};
    if (change == 2) {
      message.requests.clear();
    }
    message.encode(share);
    EXPECT_THROW(rank.apply(share), Error) << change;
  }
}

}  // namespace
}  // namespace aiacc
