#include "csrc/core/message.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/support/allocations.h"
#include "tests/cpp/support/mutator.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

RoundMessage message_of(int rank, std::size_t slots) {
  RoundMessage message;
  message.epoch = 3;
  message.ready.grow(slots);
  for (std::size_t slot = static_cast<std::size_t>(rank); slot < slots; slot += 3) {
    message.ready.set(slot);
  }
  Report report;
  report.rank = rank;
  report.requests = {make_request("layer.weight", {64, 3, 7, 7}),
                     make_request("b", OpKind::kBarrier, {}),
                     make_request("all", OpKind::kAlltoall, {4, 2})};
  report.requests[0].more = {{DataType::kInt8, {2}}, {DataType::kFloat64, {}}};
  report.requests[2].numbers = {0, 3, 1};
  report.requests[0].op = ReduceOp::kAverage;
  report.requests[0].dtype = DataType::kBFloat16;
  report.requests[0].prescale = 0.25;
  report.requests[0].postscale = -1e300;
  report.requests[0].cacheable = false;
  report.requests[1].root = 5;
  report.requests[1].device = 2;
  report.requests[1].process_set = 7;
  report.has_pending = true;
  report.pending = {"a", "", std::string(300, 'x')};
  report.requests[2].wire = WireFormat::kFloat8E4M3;
  report.proposals = {{4, 1 << 20, 2}};
  report.proposals[0].algorithm = Algorithm::kTree;
  message.reports.push_back(report);
  return message;
}

Bytes encoded(const RoundMessage& message) {
  Bytes bytes;
  message.encode(bytes);
  return bytes;
}

RoundMessage decoded(const Bytes& bytes) {
  RoundMessage message;
  message.decode(bytes);
  return message;
}

void expect_equal(const RoundMessage& a, const RoundMessage& b) {
  EXPECT_EQ(a.flags, b.flags);
  EXPECT_EQ(a.epoch, b.epoch);
  ASSERT_EQ(a.ready.words(), b.ready.words());
  for (std::size_t i = 0; i < a.ready.words(); ++i) {
    EXPECT_EQ(a.ready.word(i), b.ready.word(i));
  }
  ASSERT_EQ(a.reports.size(), b.reports.size());
  for (std::size_t i = 0; i < a.reports.size(); ++i) {
    const Report& left = a.reports[i];
    const Report& right = b.reports[i];
    EXPECT_EQ(left.rank, right.rank);
    EXPECT_EQ(left.has_pending, right.has_pending);
    EXPECT_EQ(left.pending, right.pending);
    ASSERT_EQ(left.requests.size(), right.requests.size());
    for (std::size_t k = 0; k < left.requests.size(); ++k) {
      EXPECT_EQ(left.requests[k].name, right.requests[k].name);
      EXPECT_EQ(left.requests[k].cacheable, right.requests[k].cacheable);
      EXPECT_EQ(left.requests[k].device, right.requests[k].device);
      EXPECT_TRUE(same_signature(left.requests[k], right.requests[k]));
    }
    ASSERT_EQ(left.proposals.size(), right.proposals.size());
    for (std::size_t k = 0; k < left.proposals.size(); ++k) {
      EXPECT_EQ(left.proposals[k].epoch, right.proposals[k].epoch);
      EXPECT_EQ(left.proposals[k].unit_bytes, right.proposals[k].unit_bytes);
      EXPECT_EQ(left.proposals[k].lanes, right.proposals[k].lanes);
      EXPECT_EQ(left.proposals[k].algorithm, right.proposals[k].algorithm);
    }
  }
}

TEST(RoundMessage, ComesBackAsItWasEncoded) {
  for (const std::size_t slots :
       {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{65}}) {
    RoundMessage message = message_of(2, slots);
    message.flags = kFlagStallQuery;
    expect_equal(message, decoded(encoded(message)));
  }
}

TEST(RoundMessage, ManyOfTheSmallestRequestsFit) {
  RoundMessage message;
  message.reports.emplace_back();
  for (char c = 'a'; c <= 'z'; ++c) {
    message.reports[0].requests.push_back(make_request({c}, OpKind::kBarrier, {}));
  }
  message.reports[0].requests.push_back(make_request("", OpKind::kBarrier, {}));
  expect_equal(message, decoded(encoded(message)));
}

TEST(RoundMessage, SignatureIsEverythingButNameAndCaching) {
  const Request base = make_request("x", {2, 3});
  EXPECT_TRUE(same_signature(base, make_request("y", {2, 3})));
  std::vector<Request> others(14, base);
  others[0].kind = OpKind::kBroadcast;
  others[1].dtype = DataType::kFloat64;
  others[2].op = ReduceOp::kMax;
  others[3].root = 1;
  others[4].device = 0;
  others[5].process_set = 1;
  others[6].prescale = 2;
  others[7].postscale = 2;
  others[8].shape = {3, 2};
  others[9].shape = {2, 3, 1};
  others[10].more = {{DataType::kFloat32, {2, 3}}};
  others[11].numbers = {1};
  others[12].more = {{DataType::kFloat32, {2, 3}}, {DataType::kInt8, {1}}};
  others[13].wire = WireFormat::kBFloat16;
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(same_signature(base, others[i])) << i;
  }
  Request elsewhere = others[4];
  elsewhere.device = 3;
  EXPECT_TRUE(same_signature(others[4], elsewhere)) << "GPUs have other numbers on every rank";
}

TEST(RoundMessage, BytesAndElementsOfAShape) {
  EXPECT_EQ(make_request("scalar", {}).elements(), 1U);
  EXPECT_EQ(make_request("x", {3, 5}).bytes(), 60U);
  EXPECT_EQ(make_request("empty", {3, 0, 5}).bytes(), 0U);
  EXPECT_EQ(make_request("x", {3, 5}).row_bytes(), 20U);
  Request group = make_request("x", {3, 5});
  group.more = {{DataType::kInt8, {7}}, {DataType::kFloat64, {2}}};
  EXPECT_EQ(group.tensors(), 3U);
  EXPECT_EQ(group.total_bytes(), 60U + 7U + 16U);
  EXPECT_EQ(group.tensor(1).bytes(), 7U);
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

TEST(CombineRounds, AndsBitsOrsFlagsMergesReports) {
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
  ASSERT_EQ(both.reports.size(), 2U);
  EXPECT_EQ(both.reports[0].rank, 0);
  EXPECT_EQ(both.reports[1].rank, 1);
}

TEST(CombineRounds, RefusesOtherTablesAndEpochs) {
  const auto refused = [](const RoundMessage& a, const RoundMessage& b, const std::string& text) {
    Bytes mine = encoded(a);
    try {
      combine_rounds(mine, encoded(b));
    } catch (const Error& error) {
      return std::string(error.what()).find(text) != std::string::npos;
    }
    return false;
  };
  RoundMessage other = message_of(1, 64);
  EXPECT_TRUE(refused(message_of(0, 65), other, "2 against 1 words"));
  other = message_of(1, 65);
  other.epoch = 9;
  EXPECT_TRUE(refused(message_of(0, 65), other, "epoch 3 against 9"));
}

struct Malformed {
  const char* what;
  void (*change)(RoundMessage&);
};

TEST(RoundMessage, WhatNoRankWouldSendIsRefused) {
  const Malformed cases[] = {
      {"kind",
       [](RoundMessage& m) { m.reports[0].requests[0].kind = static_cast<OpKind>(kOpKinds); }},
      {"dtype",
       [](RoundMessage& m) { m.reports[0].requests[0].dtype = static_cast<DataType>(11); }},
      {"op", [](RoundMessage& m) { m.reports[0].requests[0].op = static_cast<ReduceOp>(6); }},
      {"negative extent", [](RoundMessage& m) { m.reports[0].requests[0].shape[1] = -1; }},
      {"too many dimensions",
       [](RoundMessage& m) { m.reports[0].requests[0].shape.assign(65, 1); }},
      {"long name", [](RoundMessage& m) { m.reports[0].requests[0].name.assign(65537, 'x'); }},
      {"two proposals",
       [](RoundMessage& m) { m.reports[0].proposals.push_back(m.reports[0].proposals[0]); }},
      {"no unit", [](RoundMessage& m) { m.reports[0].proposals[0].unit_bytes = 0; }},
      {"no lane", [](RoundMessage& m) { m.reports[0].proposals[0].lanes = 0; }},
      {"dtype in a group",
       [](RoundMessage& m) { m.reports[0].requests[0].more[1].dtype = static_cast<DataType>(11); }},
      {"negative extent in a group",
       [](RoundMessage& m) { m.reports[0].requests[0].more[0].shape[0] = -5; }},
      {"negative split", [](RoundMessage& m) { m.reports[0].requests[2].numbers[0] = -1; }},
      {"a reduce-scatter of a group with a scalar",
       [](RoundMessage& m) { m.reports[0].requests[0].kind = OpKind::kReducescatter; }},
      {"an all-gather without a dimension",
       [](RoundMessage& m) {
         m.reports[0].requests[0] = make_request("x", OpKind::kAllgather, {});
       }},
  };
  for (const Malformed& malformed : cases) {
    RoundMessage message = message_of(0, 10);
    malformed.change(message);
    EXPECT_THROW(decoded(encoded(message)), Error) << malformed.what;
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

TEST(RoundMessageFuzz, DamagedMessagesDecodeOrThrowAndAllocateLittle) {
  const Bytes valid[] = {
      encoded(message_of(0, 0)), encoded(message_of(1, 64)), encoded(message_of(2, 5000))};
  int decoded = 0;
  for (std::uint32_t seed = 0; seed < 20000; ++seed) {
    Mutator mutator(seed);
    const Bytes bytes = mutator.damage(valid[seed % std::size(valid)]);
    largest_allocation.store(0);
    decoded += decodes(bytes) ? 1 : 0;
    // A vector of reports doubles as it grows; nothing may follow a claimed length blindly.
    ASSERT_LT(largest_allocation.load(), 64 * bytes.size() + 4096) << "seed " << seed;
  }
  EXPECT_GT(decoded, 100) << "the damage is so heavy that nothing behind the header was reached";
}

TEST(CombineRoundsFuzz, DamagedSharesCombineOrThrow) {
  const Bytes valid[] = {encoded(message_of(0, 200)), encoded(message_of(1, 200))};
  for (std::uint32_t seed = 0; seed < 20000; ++seed) {
    Mutator mutator(seed);
    Bytes mine = seed % 3 == 0 ? mutator.damage(valid[0]) : valid[0];
    const Bytes theirs = mutator.damage(valid[1]);
    try {
      combine_rounds(mine, theirs);
      decodes(mine);
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == Code::kPeerLost || error.code() == Code::kInternal)
          << "seed " << seed << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace aiacc
