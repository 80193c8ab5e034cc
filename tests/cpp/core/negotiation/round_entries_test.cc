#include "csrc/core/negotiation/round_entries.h"

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/control/tcp/frame.h"
#include "csrc/core/negotiation/message.h"
#include "csrc/core/negotiation/request_checks.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

Bytes share_of(int rank, const std::vector<Request>& requests) {
  RoundMessage message;
  for (const Request& request : requests) {
    message.requests.emplace_back(
        request, rank, static_cast<std::uint32_t>(message.requests.size()));
  }
  return encoded(message);
}

/// Folds neighbours or others, in any order and grouping.
Bytes fold(std::vector<Bytes> shares, std::mt19937& random) {
  while (shares.size() > 1) {
    std::swap(shares[random() % shares.size()], shares.back());
    const Bytes theirs = std::move(shares.back());
    shares.pop_back();
    combine_rounds(shares[random() % shares.size()], theirs);
  }
  return shares.front();
}

std::vector<Request> model(std::size_t tensors) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < tensors; ++i) {
    requests.push_back(make_request("layer." + std::to_string(i) + ".weight", {1024, 1024}));
  }
  return requests;
}

/// The union of what ranks say, folded in any order.
Bytes union_of(int ranks, const std::function<std::vector<Request>(int)>& requests) {
  std::mt19937 random(1);
  std::vector<Bytes> shares;
  for (int rank = 0; rank < ranks; ++rank) {
    shares.push_back(share_of(rank, requests(rank)));
  }
  return fold(std::move(shares), random);
}

class RoundEntriesTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

TEST_P(RoundEntriesTest, EqualRequestsOfAllRanksAreAsLongAsThoseOfOne) {
  const Bytes all = union_of(size(), [](int) { return model(50); });
  EXPECT_LE(all.size(), share_of(0, model(50)).size() + 4);
  const RoundMessage message = decoded(all);
  ASSERT_EQ(message.requests.size(), 50U);
  for (const SharedRequest& shared : message.requests) {
    EXPECT_EQ(shared.senders->ranks(), RankSet(0, size() - 1));
  }
}

/// Hosts of eight GPUs: which rank uses which one is written once for all tensors.
TEST_P(RoundEntriesTest, NumbersOfGpusAreWrittenOnce) {
  const auto bytes_of = [&](std::size_t tensors) {
    const Bytes all = union_of(size(), [=](int rank) {
      std::vector<Request> requests = model(tensors);
      for (Request& request : requests) {
        request.device = rank % 8;
      }
      return requests;
    });
    for (const SharedRequest& shared : decoded(all).requests) {
      for (int rank = 0; rank < size(); ++rank) {
        EXPECT_EQ(shared.senders->part_of(rank)->device, rank % 8);
      }
    }
    return all.size();
  };
  EXPECT_LE(bytes_of(20) - bytes_of(10), 10U * 70U);
}

/// Ranks are not equally far: each has submitted the tensors up to some point.
TEST_P(RoundEntriesTest, WhatSomeRanksHaveSentIsABitPerRankAtMost) {
  std::mt19937 random(1);
  const Bytes all = union_of(size(), [&](int) { return model(20 + random() % 21); });
  const auto bits = static_cast<std::size_t>(size()) / 8 + 10;
  EXPECT_LE(all.size(), share_of(0, model(40)).size() + 21 * bits);
}

/// Any requests, some equal and some not, some with parts of their own; names so long that the
/// union is cut in some cases.
TEST_P(RoundEntriesTest, TheUnionDoesNotDependOnTheOrderOfFolding) {
  std::size_t cuts = 0;
  const bool many = size() > 100;
  const std::uint32_t seeds = size() > 3 ? 6 : 20;
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::size_t names = 130 + random() % 80;
    const std::size_t name_bytes = seed % 2 == 0 || many ? 10 : 60000;
    const std::size_t each = size() > 3 ? 6 : 130;
    std::vector<Bytes> shares;
    for (int rank = 0; rank < size(); ++rank) {
      std::vector<Request> requests;
      std::set<std::size_t> mine;
      for (std::size_t left = random() % each; left > 0; --left) {
        mine.insert(random() % names);
      }
      for (const std::size_t name : mine) {
        // Those of process sets travel with their names.
        const auto kind = name % 3 == 0 ? OpKind::kAllgather : OpKind::kAddProcessSet;
        requests.push_back(make_request(std::to_string(name) + std::string(name_bytes, 'x'),
                                        kind,
                                        {1 + static_cast<std::int64_t>(random() % 2), 2}));
        requests.back().device = static_cast<std::int32_t>(random() % 3) - 1;
      }
      std::shuffle(requests.begin(), requests.end(), random);
      shares.push_back(share_of(rank, requests));
    }
    const Bytes first = fold(shares, random);
    for (int again = 0; again < 3; ++again) {
      ASSERT_TRUE(fold(shares, random) == first);
    }
    const RoundMessage message = decoded(first);
    cuts += message.cut ? 1 : 0;
    EXPECT_LE(first.size(), kRoundBudget + (std::size_t{1} << 17));
    // Whatever is before the cut is there, from everybody.
    for (int rank = 0; rank < size(); ++rank) {
      for (const SharedRequest& mine : decoded(shares[static_cast<std::size_t>(rank)]).requests) {
        const auto found = std::find_if(message.requests.begin(),
                                        message.requests.end(),
                                        [&](const auto& other) { return other.key == mine.key; });
        ASSERT_EQ(found != message.requests.end(), !message.cut || mine.key < *message.cut);
        if (found != message.requests.end()) {
          ASSERT_NE(found->senders->part_of(rank), nullptr);
          EXPECT_EQ(*found->senders->part_of(rank), *mine.senders->part_of(rank));
        }
      }
    }
  }
  EXPECT_EQ(cuts > 0, size() > 1 && !many) << "unions that are too large";
}

INSTANTIATE_TEST_SUITE_P(Sizes, RoundEntriesTest, testing::Values(1, 2, 3, 64, 65, 1024));

TEST(RoundEntries, WhatIsTooLargeForARoundTravelsAlone) {
  Request group = make_request("group");
  group.tensors.resize(600'000, {DataType::kFloat32, {1'000'000, 1'000'000}});
  EXPECT_GT(text_of(group).size(), kRoundBudget);
  RoundMessage told;
  told.texts = {text_from(1, group), text_from(1, make_request("b"))};
  Bytes both = share_of(0, {make_request("a")});
  combine_rounds(both, encoded(told));
  const RoundMessage first = decoded(both);
  EXPECT_TRUE(first.cut);
  EXPECT_EQ(first.requests.size() + first.texts.size(),
            told.texts[1].key < told.texts[0].key ? 2U : 1U);
  RoundMessage alone;
  alone.texts = {told.texts[0]};
  EXPECT_EQ(decoded(encoded(alone)).texts.at(0).request->tensors.size(), group.tensors.size());
}

TEST(RoundEntries, TwoRanksCannotSpeakForOne) {
  Bytes mine = share_of(1, {make_request("x")});
  EXPECT_THROW(combine_rounds(mine, share_of(1, {make_request("x")})), Error);
}

/// Fails the one submission; no round of the job can be too large for a frame.
TEST(CheckRequest, WhatNoMessageCanHoldIsRefusedWhereItIsSubmitted) {
  const auto problem_of = [](const Request& request, int ranks) {
    try {
      check_request(request, RankSet(0, ranks - 1).ranks());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string();
  };
  Request group = make_request("group");
  group.tensors.resize(100'000, {DataType::kFloat32, {1, 1, 1, 1, 1, 1, 1}});
  EXPECT_EQ(problem_of(group, 2), "");
  group.tensors.resize(kMaxGroupTensors, group.tensors[1]);
  EXPECT_NE(problem_of(group, 2).find("(expected at most 8388608"), std::string::npos);
  Request rows = make_request("rows", OpKind::kAllgather, {1});
  rows.tensors.resize(100'000, {DataType::kFloat32, {1}});
  EXPECT_EQ(problem_of(rows, 64), "");
  EXPECT_NE(problem_of(rows, 1024).find("(expected at most 32768 on each of 1024 ranks"),
            std::string::npos);
  Request splits = make_request("splits", OpKind::kAlltoall, {1024 * 300});
  splits.numbers.assign(1024, 300);
  EXPECT_EQ(problem_of(splits, 1024), "");
  EXPECT_LE(kRoundBudget + 2 * kMaxTextBytes + kMaxPartsBytes, FrameDecoder::kMaxPayload);
}

TEST(RequestCodec, BothPartsArrive) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    Request request = make_request(std::string(random() % 300, 'n'),
                                   static_cast<OpKind>(random() % kOpKinds),
                                   {static_cast<std::int64_t>(random() % 40000)});
    request.tensors.resize(1 + random() % 3, TensorSpec{DataType::kInt8, {5, 1 << 20}});
    request.numbers.resize(random() % 4, static_cast<std::int64_t>(random()));
    request.device = static_cast<std::int32_t>(random() % 300) - 1;
    request.wire = static_cast<WireFormat>(random() % kWireFormats);
    request.wire_detail = static_cast<std::uint32_t>(random());
    Bytes part;
    Writer writer(part);
    encode_part(own_part(request), writer);
    EXPECT_EQ(part.size(), part_bytes(own_part(request)));
    const Request arrived =
        with_part(request_of(text_of(request)),
                  decode_part({reinterpret_cast<const char*>(part.data()), part.size()}));
    EXPECT_TRUE(same_signature(request, arrived)) << i;
    EXPECT_EQ(request.name, arrived.name);
    EXPECT_EQ(request.device, arrived.device);
  }
}

/// Of another rank, whose submission checked them, unless it lies.
TEST(RequestCodec, CodesThatNobodyCanSubmitAreFoundOut) {
  Request request = make_request("x");
  request.wire = WireFormat::kInt8Blocks;
  request.wire_detail = 256;
  EXPECT_EQ("", common_problem(request, {0, 1}));
  for (const std::uint32_t detail : {0U, 3U, 0xffffffffU}) {
    request.wire_detail = detail;
    EXPECT_NE("", common_problem(request, {0, 1})) << detail;
  }
  request.wire_detail = 256;
  request.tensors[0].dtype = DataType::kFloat64;
  EXPECT_NE("", common_problem(request, {0, 1}));
}

}  // namespace
}  // namespace aiacc
