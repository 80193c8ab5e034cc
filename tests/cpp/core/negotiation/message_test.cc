#include "csrc/core/negotiation/message.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/support/allocations.h"
#include "tests/cpp/support/mutator.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

std::vector<Request> requests_of(int rank) {
  std::vector<Request> requests = {make_request("layer.weight", {64, 3, 7, 7}),
                                   make_request("b", OpKind::kBarrier, {}),
                                   make_request("all", OpKind::kAlltoall, {4, 2}),
                                   make_request("rows", OpKind::kAllgather, {rank, 5})};
  requests[0].tensors = {requests[0].tensors[0], {DataType::kInt8, {2}}, {DataType::kFloat64, {}}};
  requests[2].numbers = {0, 3, 1};
  requests[0].op = ReduceOp::kAverage;
  requests[0].tensors[0].dtype = DataType::kBFloat16;
  requests[0].prescale = 0.25;
  requests[0].postscale = -1e300;
  requests[0].cacheable = false;
  requests[1].root = 5;
  requests[1].device = 2 + rank;
  requests[1].process_set = 7;
  requests[2].wire = WireFormat::kFloat8E4M3;
  return requests;
}

RoundMessage message_of(int rank, std::size_t slots) {
  RoundMessage message;
  message.epoch = 3;
  message.ready.grow(slots);
  for (std::size_t slot = static_cast<std::size_t>(rank); slot < slots; slot += 3) {
    message.ready.set(slot);
  }
  const std::vector<Request> requests = requests_of(rank);
  message.texts = {text_from(rank, requests[0])};
  for (const Request& request : requests) {
    message.requests.emplace_back(
        request, rank, static_cast<std::uint32_t>(message.requests.size()));
  }
  message.answers.ranks.add(rank);
  for (const std::string& name : {std::string("a"), std::string("b"), std::string(300, 'x')}) {
    message.answers.names.push_back(
        {name, 70000 + 10 * static_cast<std::uint32_t>(rank), RankSet(0, 4), false, RankSet(rank)});
  }
  message.proposal = Proposal{rank, {4, 1 << 20, 2}};
  message.proposal->parameters.algorithm = Algorithm::kTree;
  message.proposal->parameters.gpu_unit_bytes = 3 << 20;
  return message;
}

TEST(RoundMessage, ComesBackAsItWasEncoded) {
  for (const std::size_t slots : {0, 1, 64, 65}) {
    RoundMessage message = message_of(2, slots);
    message.flags = kFlagStallQuery;
    const RoundMessage got = decoded(encoded(message));
    EXPECT_EQ(encoded(got), encoded(message)) << "requests by their keys, and what is answered";
    EXPECT_EQ(got.flags, message.flags);
    EXPECT_EQ(got.epoch, message.epoch);
    ASSERT_EQ(got.ready.words(), message.ready.words());
    for (std::size_t slot = 0; slot < slots; ++slot) {
      EXPECT_EQ(got.ready.test(slot), slot % 3 == 2);
    }
    ASSERT_EQ(got.requests.size(), message.requests.size());
    for (const SharedRequest& sent : message.requests) {
      const auto same = [&](const auto& one) { return one.id == sent.id; };
      const auto arrived = std::find_if(got.requests.begin(), got.requests.end(), same);
      ASSERT_NE(arrived, got.requests.end());
      EXPECT_EQ(sent.key, arrived->key);
      EXPECT_EQ(sent.position, arrived->position);
      EXPECT_EQ(*sent.senders->part_of(2), *arrived->senders->part_of(2));
    }
    ASSERT_EQ(got.texts.size(), 1U);
    EXPECT_TRUE(got.texts[0].id == message.requests[0].id);
    EXPECT_TRUE(same_signature(*got.texts[0].request, requests_of(2)[0]));
    EXPECT_FALSE(got.texts[0].request->cacheable);
    ASSERT_EQ(got.answers.names.size(), 3U);
    const PendingName& name = got.answers.names[2];
    EXPECT_EQ(name.label, message.answers.names[2].label);
    EXPECT_EQ(name.waited_ms, 70020U);
    EXPECT_EQ(name.awaited, RankSet(0, 4));
    const Parameters& parameters = got.proposal.value().parameters;
    EXPECT_EQ(parameters.epoch, 4U);
    EXPECT_EQ(parameters.unit_bytes, 1U << 20);
    EXPECT_EQ(parameters.lanes, 2U);
    EXPECT_EQ(parameters.algorithm, Algorithm::kTree);
    EXPECT_EQ(parameters.gpu_unit_bytes, 3U << 20);
  }
}

/// Which are as short as a count of entries takes for granted.
TEST(RoundMessage, ManyOfTheSmallestRequestsFit) {
  RoundMessage message;
  message.requests.emplace_back(make_request("", OpKind::kBarrier, {}), 0, 26);
  for (char c = 'a'; c <= 'z'; ++c) {
    message.requests.emplace_back(make_request({c}, OpKind::kBarrier, {}), 0, c - 'a');
  }
  EXPECT_EQ(decoded(encoded(message)).requests.size(), 27U);
}

TEST(Request, RowsThatAReduceScatterLeavesToEveryMember) {
  for (const int size : {1, 2, 4, 7}) {
    for (std::int64_t rows = 0; rows < 20; ++rows) {
      std::int64_t sum = 0;
      for (int member = 0; member < size; ++member) {
        const std::int64_t mine = scattered_rows(rows, size, member);
        EXPECT_EQ(mine, rows / size + (member < rows % size ? 1 : 0));
        sum += mine;
      }
      EXPECT_EQ(sum, rows);
    }
  }
}

TEST(CombineRounds, AndsBitsOrsFlagsMergesEntries) {
  RoundMessage a = message_of(0, 100);
  RoundMessage b = message_of(1, 100);
  a.ready.set(64);
  b.ready.set(64);
  b.flags = kFlagStallQuery;
  Bytes mine = encoded(a);
  combine_rounds(mine, encoded(b));
  const RoundMessage both = decoded(mine);
  EXPECT_EQ(both.flags, kFlagStallQuery);
  for (std::size_t slot = 0; slot < 100; ++slot) {
    EXPECT_EQ(both.ready.test(slot), a.ready.test(slot) && b.ready.test(slot)) << slot;
  }
  ASSERT_EQ(both.requests.size(), 4U) << "equal requests are one";
  std::set<std::int32_t> devices;
  std::set<std::vector<std::int64_t>> rows;
  for (const SharedRequest& shared : both.requests) {
    EXPECT_EQ(shared.senders->ranks(), RankSet(0, 1));
    devices.insert(shared.senders->part_of(1)->device);
    rows.insert(shared.senders->part_of(1)->numbers);
  }
  EXPECT_EQ(devices, (std::set<std::int32_t>{-1, 3}));
  EXPECT_EQ(rows, (std::set<std::vector<std::int64_t>>{{}, {1}, {4, 0, 3, 1}}));
  EXPECT_EQ(both.answers.ranks, RankSet(0, 1));
  ASSERT_EQ(both.answers.names.size(), 3U);
  EXPECT_EQ(both.answers.names[0].ranks, RankSet(0, 1));
  EXPECT_EQ(both.answers.names[0].waited_ms, 70010U) << "of the rank that has waited longest";
  EXPECT_EQ(both.proposal->rank, 0) << "the lowest rank's";
  Bytes other_way = encoded(b);
  combine_rounds(other_way, encoded(a));
  EXPECT_EQ(other_way, mine);
}

TEST(CombineRounds, RefusesOtherTablesAndEpochs) {
  RoundMessage later = message_of(1, 65);
  later.epoch = 9;
  for (const auto& [other, text] :
       {std::pair(message_of(1, 64), "2 against 1 words, parameter epoch 3 against 3"),
        std::pair(later, "2 against 2 words, parameter epoch 3 against 9")}) {
    Bytes mine = encoded(message_of(0, 65));
    try {
      combine_rounds(mine, encoded(other));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(),
                std::string("[negotiation] ranks disagree on their slot tables: ") + text);
    }
  }
}

/// Decodes; Error is fine, anything else escapes and fails the test.
bool decodes(const Bytes& bytes) {
  try {
    decoded(bytes);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kPeerLost);
    return false;
  }
}

TEST(RoundMessageFuzz, EveryTruncationIsAnError) {
  const Bytes valid = encoded(message_of(1, 130));
  for (std::size_t bytes = 0; bytes < valid.size(); ++bytes) {
    EXPECT_FALSE(decodes({valid.begin(), valid.begin() + static_cast<std::ptrdiff_t>(bytes)}))
        << bytes;
  }
  Bytes longer = valid;
  longer.push_back(0);
  EXPECT_FALSE(decodes(longer));
}

TEST(RoundMessageFuzz, DamagedMessagesDecodeCombineOrThrowAndAllocateLittle) {
  std::vector<Bytes> valid[2];  // of either rank
  for (const std::size_t slots : {0, 64, 200, 5000}) {
    valid[0].push_back(encoded(message_of(0, slots)));
    valid[1].push_back(encoded(message_of(1, slots)));
  }
  int decoded = 0;
  for (std::uint32_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mutator mutator(seed);
    const Bytes& share = valid[0][seed % valid[0].size()];
    const Bytes bytes = mutator.damage(share);
    largest_allocation.store(0);
    decoded += decodes(bytes) ? 1 : 0;
    // A vector of reports doubles as it grows; nothing may follow a claimed length blindly.
    ASSERT_LT(largest_allocation.load(), 64 * bytes.size() + 4096);
    Bytes mine = seed % 3 == 0 ? mutator.damage(share) : share;
    try {
      combine_rounds(mine, mutator.damage(valid[1][seed % valid[1].size()]));
      decodes(mine);
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == Code::kPeerLost || error.code() == Code::kInternal);
    }
  }
  EXPECT_GT(decoded, 100) << "the damage is so heavy that nothing behind the header was reached";
}

}  // namespace
}  // namespace aiacc
