#include "csrc/core/negotiation/message.h"

#include <functional>
#include <map>
#include <memory>
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
  std::vector<Request> requests = {make_request("layer.weight", {64, 3, 7, 7}),
                                   make_request("b", OpKind::kBarrier, {}),
                                   make_request("all", OpKind::kAlltoall, {4, 2}),
                                   make_request("rows", OpKind::kAllgather, {rank, 5})};
  requests[0].more = {{DataType::kInt8, {2}}, {DataType::kFloat64, {}}};
  requests[2].numbers = {0, 3, 1};
  requests[0].op = ReduceOp::kAverage;
  requests[0].dtype = DataType::kBFloat16;
  requests[0].prescale = 0.25;
  requests[0].postscale = -1e300;
  requests[0].cacheable = false;
  requests[1].root = 5;
  requests[1].device = 2 + rank;
  requests[1].process_set = 7;
  requests[2].wire = WireFormat::kFloat8E4M3;
  for (const Request& request : requests) {
    message.requests.emplace_back(
        request, rank, static_cast<std::uint32_t>(message.requests.size()));
  }
  message.answers.ranks.add(rank);
  for (const std::string& name : {std::string("a"), std::string("b"), std::string(300, 'x')}) {
    message.answers.names.push_back({name, RankSet(rank)});
  }
  message.proposal = Proposal{rank, {4, 1 << 20, 2}};
  message.proposal->parameters.algorithm = Algorithm::kTree;
  message.proposal->parameters.gpu_unit_bytes = 3 << 20;
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
  const auto by_name = [](const RoundMessage& message) {
    std::map<std::string, const SharedRequest*> requests;
    for (const SharedRequest& shared : message.requests) {
      requests[shared.request.name] = &shared;
    }
    EXPECT_EQ(requests.size(), message.requests.size());
    return requests;
  };
  const auto left = by_name(a);
  const auto right = by_name(b);
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, shared] : left) {
    ASSERT_EQ(right.count(name), 1U);
    const SharedRequest& other = *right.at(name);
    EXPECT_EQ(shared->key, other.key);
    EXPECT_EQ(shared->position, other.position);
    ASSERT_EQ(shared->senders->ranks(), other.senders->ranks());
    shared->senders->ranks().for_each([&](int rank) {
      const Request mine = shared->of(rank);
      const Request theirs = other.of(rank);
      EXPECT_EQ(mine.name, theirs.name);
      EXPECT_EQ(mine.cacheable, theirs.cacheable);
      EXPECT_EQ(mine.device, theirs.device);
      EXPECT_TRUE(same_signature(mine, theirs));
    });
  }
  EXPECT_EQ(a.answers.ranks, b.answers.ranks);
  ASSERT_EQ(a.answers.names.size(), b.answers.names.size());
  for (std::size_t i = 0; i < a.answers.names.size(); ++i) {
    EXPECT_EQ(a.answers.names[i].label, b.answers.names[i].label);
    EXPECT_EQ(a.answers.names[i].ranks, b.answers.names[i].ranks);
  }
  ASSERT_EQ(a.proposal.has_value(), b.proposal.has_value());
  if (a.proposal) {
    EXPECT_EQ(a.proposal->rank, b.proposal->rank);
    EXPECT_EQ(a.proposal->parameters.epoch, b.proposal->parameters.epoch);
    EXPECT_EQ(a.proposal->parameters.unit_bytes, b.proposal->parameters.unit_bytes);
    EXPECT_EQ(a.proposal->parameters.gpu_unit_bytes, b.proposal->parameters.gpu_unit_bytes);
    EXPECT_EQ(a.proposal->parameters.lanes, b.proposal->parameters.lanes);
    EXPECT_EQ(a.proposal->parameters.algorithm, b.proposal->parameters.algorithm);
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
  for (char c = 'a'; c <= 'z'; ++c) {
    message.requests.emplace_back(make_request({c}, OpKind::kBarrier, {}), 0, c - 'a');
  }
  message.requests.emplace_back(make_request("", OpKind::kBarrier, {}), 0, 26);
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
  for (const SharedRequest& shared : both.requests) {
    EXPECT_EQ(shared.senders->ranks(), RankSet(0, 1)) << shared.request.name;
    for (const int rank : {0, 1}) {
      const Request of_rank = shared.of(rank);
      EXPECT_EQ(of_rank.device, shared.request.name == "b" ? 2 + rank : -1);
      if (shared.request.name == "rows") {
        EXPECT_EQ(of_rank.shape, (std::vector<std::int64_t>{rank, 5}));
      }
    }
  }
  EXPECT_EQ(both.answers.ranks, RankSet(0, 1));
  ASSERT_EQ(both.answers.names.size(), 3U);
  EXPECT_EQ(both.answers.names[0].ranks, RankSet(0, 1));
  EXPECT_EQ(both.proposal->rank, 0) << "the lowest rank's";
  Bytes other_way = encoded(b);
  combine_rounds(other_way, encoded(a));
  EXPECT_EQ(other_way, mine);
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
  std::function<void(Request&)> change;
};

TEST(RoundMessage, WhatNoRankWouldSendIsRefused) {
  const Malformed cases[] = {
      {"kind", [](Request& r) { r.kind = static_cast<OpKind>(kOpKinds); }},
      {"dtype", [](Request& r) { r.dtype = static_cast<DataType>(kDataTypes); }},
      {"op", [](Request& r) { r.op = static_cast<ReduceOp>(6); }},
      {"wire", [](Request& r) { r.wire = static_cast<WireFormat>(kWireFormats); }},
      {"negative extent", [](Request& r) { r.shape[1] = -1; }},
      {"too many dimensions", [](Request& r) { r.shape.assign(65, 1); }},
      {"long name", [](Request& r) { r.name.assign(65537, 'x'); }},
      {"dtype in a group", [](Request& r) { r.more[1].dtype = static_cast<DataType>(kDataTypes); }},
      {"negative extent in a group", [](Request& r) { r.more[0].shape[0] = -5; }},
      {"negative split",
       [](Request& r) {
         r = make_request("x", OpKind::kAlltoall, {3});
         r.numbers = {4, -1};
       }},
      {"negative rows", [](Request& r) { r = make_request("x", OpKind::kAllgather, {-2}); }},
      {"a reduce-scatter of a group with a scalar",
       [](Request& r) { r.kind = OpKind::kReducescatter; }},
      {"a GPU beyond all numbers", [](Request& r) { r.device = 1 << 20; }},
  };
  for (const Malformed& malformed : cases) {
    Request request = make_request("x", {64, 3});
    request.more = {{DataType::kInt8, {2}}, {DataType::kFloat64, {}}};
    RoundMessage message;
    message.requests.emplace_back(request, 0, 0);
    EXPECT_NO_THROW(decoded(encoded(message)));
    malformed.change(request);
    message.requests[0] = SharedRequest(request, 0, 0);
    EXPECT_THROW(decoded(encoded(message)), Error) << malformed.what;
  }
}

TEST(RoundMessage, ProposalsThatNoRankWouldMakeAreRefused) {
  RoundMessage message;
  message.proposal = Proposal{0, {1, 1 << 20, 1}};
  EXPECT_NO_THROW(decoded(encoded(message)));
  message.proposal = Proposal{0, {1, 0, 1}};
  EXPECT_THROW(decoded(encoded(message)), Error) << "no unit";
  message.proposal = Proposal{0, {1, 1 << 20, 0}};
  EXPECT_THROW(decoded(encoded(message)), Error) << "no lane";
}

TEST(RoundMessage, APartOfAnotherOperationIsRefused) {
  const auto refused = [](const Request& request, const OwnPart& part) {
    RoundMessage message;
    message.requests.emplace_back(request, 0, 0);
    message.requests[0].senders = std::make_shared<Senders>(0, part);
    try {
      decoded(encoded(message));
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  const Request reduce = make_request("x", {2});
  const Request gather = make_request("x", OpKind::kAllgather, {2});
  EXPECT_FALSE(refused(reduce, {-1, {}}));
  EXPECT_TRUE(refused(reduce, {0, {}})) << "on a GPU and not on one";
  EXPECT_TRUE(refused(reduce, {-1, {2}}));
  EXPECT_FALSE(refused(gather, {-1, {7}}));
  EXPECT_TRUE(refused(gather, {-1, {}}));
  EXPECT_TRUE(refused(gather, {-1, {1, 2}}));
  EXPECT_TRUE(refused(make_request("x", OpKind::kAlltoall, {2}), {-1, {}}));
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
