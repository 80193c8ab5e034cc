// One rank of a job lies. What the others can tell is an error that says what it is; whatever else
// it says may not break their memory, and they come to the same end.

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/request_matching.h"
#include "tests/cpp/support/allocations.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/peers/hostile_ranks.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

constexpr int kSize = 3;
constexpr int kLiar = 2;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

using Numbers = std::vector<std::int64_t>;
using Lie = std::function<void(RoundMessage&)>;

/// Ranks 0 and 1 submit `honest`, rank 2 sends what `lie` makes of its message. The end of the
/// honest ones, which is the same.
Status outcome_of(const Request& honest, const Lie& lie) {
  std::vector<Bytes> shares(kSize);
  std::vector<Negotiator> ranks;
  Submitted submitted{honest};
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back(rank, kSize, 16, Parameters{0, 1 << 20, 1});
    ranks.back().submit(submitted);
    ranks.back().contribute(shares[static_cast<std::size_t>(rank)]);
  }
  RoundMessage message = decoded(shares[kLiar]);
  lie(message);
  message.encode(shares[kLiar]);
  std::vector<Status> statuses;
  for (int rank = 0; rank < kLiar; ++rank) {
    try {
      Bytes combined = shares[0];
      combine_rounds(combined, shares[1], RankBlock(std::vector<int>{1}));
      combine_rounds(combined, shares[kLiar], RankBlock(std::vector<int>{kLiar}));
      statuses.push_back(ranks[static_cast<std::size_t>(rank)].apply(combined).ready.at(0).status);
    } catch (const Error& error) {
      statuses.push_back(error.status());
    }
  }
  EXPECT_EQ(statuses[0].message(), statuses[1].message());
  return statuses[0];
}

void expect_lost(const Request& honest, const Lie& lie, const std::string& text) {
  expect_error(outcome_of(honest, lie), Code::kPeerLost, {text});
}

std::string malformed(const std::string& what) {
  return "rank 2 cannot be trusted: [negotiation] malformed round message (" + what + ")";
}

/// Instead of a request, another one.
struct RequestLie {
  Request honest;
  std::function<void(Request&)> change;
  std::string text;
  bool in_its_text = true;  ///< or in the part that ranks may differ in
};

/// `named`: the text begins with the rank and its request.
void expect_lost(const std::vector<RequestLie>& lies, bool named) {
  for (const RequestLie& lie : lies) {
    Request request = lie.honest;
    lie.change(request);
    const auto send = [&](RoundMessage& message) {
      if (lie.in_its_text && !changes_sets(request.kind)) {
        message.texts = {text_from(kLiar, request)};
      } else {
        message.requests = {SharedRequest(request, kLiar, 0)};
      }
    };
    const std::string operation = operation_text(request.kind, 0, request.name);
    expect_lost(lie.honest,
                send,
                named ? "[negotiation] rank 2 sent " + operation + " with " + lie.text : lie.text);
  }
}

Request change_of_sets(OpKind kind, Numbers numbers) {
  const char* name = kind == OpKind::kFormProcessSet ? "form_process_set.s" : "set";
  Request request = make_request(name, kind, {});
  request.cacheable = false;
  request.numbers = std::move(numbers);
  return request;
}

Request exchange() {
  Request request = make_request("x", OpKind::kAlltoall, {3, 2});
  request.numbers = {1, 1, 1};
  return request;
}

const Request kReduce = make_request("x", {2, 4});
const Request kGather = make_request("x", OpKind::kAllgather, {2, 4});
const Request kScatter = make_request("x", OpKind::kReducescatter, {2, 4});

TEST(HostileRank, TheTruthIsFine) {
  for (const Request& request : {kReduce, kGather, kScatter, exchange()}) {
    EXPECT_TRUE(outcome_of(request, [](RoundMessage&) {}).ok());
  }
}

TEST(HostileRank, RequestsThatCannotBeDecoded) {
  Request group = kReduce;
  group.tensors = {group.tensors[0], {DataType::kInt8, {2}}, {DataType::kFloat64, {}}};
  EXPECT_TRUE(outcome_of(group, [](RoundMessage&) {}).ok());
  const Request sets = change_of_sets(OpKind::kAddProcessSet, {1});
  const std::string operation = malformed("an unknown operation or reduction");
  const std::string data_type = malformed("an unknown data type");
  const std::string extent = malformed("a negative extent");
  const std::vector<RequestLie> lies = {
      {group, [](auto& r) { r.kind = OpKind{kOpKinds}; }, operation},
      {group, [](auto& r) { r.op = ReduceOp{6}; }, operation},
      {group, [](auto& r) { r.tensors[0].dtype = DataType{kDataTypes}; }, data_type},
      {group, [](auto& r) { r.tensors[2].dtype = DataType{kDataTypes}; }, data_type},
      {group,
       [](auto& r) { r.wire = WireFormat{kWireFormats}; },
       malformed("an unknown wire format")},
      {group, [](auto& r) { r.tensors[0].shape[1] = -1; }, extent},
      {group, [](auto& r) { r.tensors[1].shape[0] = -5; }, extent},
      {sets, [](auto& r) { r.numbers = {-1}; }, extent},
      {group, [](auto& r) { r.tensors[0].shape.assign(65, 1); }, malformed("a count of 65")},
      {group, [](auto& r) { r.name.assign(65537, 'x'); }, malformed("a count of 65537")},
      {group, [](auto& r) { r.kind = OpKind::kReducescatter; }, malformed("rows of a scalar")},
      // These are found where the message comes in, from a rank that is known there.
      {kGather, [](auto& r) { r.tensors[0].shape[0] = -1; }, "(a negative extent)", false},
      {exchange(), [](auto& r) { r.numbers = {4, -1, 0}; }, "(a negative extent)", false},
      {group, [](auto& r) { r.device = 1 << 20; }, "(GPU 1048577)", false},
  };
  expect_lost(lies, false);
}

TEST(HostileRank, RequestsThatNoRankSubmits) {
  const Request add = change_of_sets(OpKind::kAddProcessSet, {1});
  const Request remove = change_of_sets(OpKind::kRemoveProcessSet, {1});
  const Request form = change_of_sets(OpKind::kFormProcessSet, {0, 1, 2});
  const Request leave = change_of_sets(OpKind::kLeaveProcessSet, {});
  const Request cast = make_request("x", OpKind::kBroadcast, {2});
  const TensorSpec half{DataType::kInt8, {std::int64_t{1} << 45}};
  const std::string most = " (expected at most 70368744177664 bytes)";
  const std::string only_sets = "this name (expected one that begins with \"form_process_set.\"";
  std::vector<RequestLie> lies = {
      {cast, [](auto& r) { r.root = 7; }, "root_rank 7 (expected 0..2)"},
      {kReduce, [](auto& r) { r.numbers = {4}; }, "numbers [4] (expected none)"},
      {kScatter, [](auto& r) { r.op = ReduceOp::kMax; }, "op=Max (expected Sum or Average)"},
      {kReduce,
       [](auto& r) { r.wire = WireFormat::kFloat8E4M3; },
       "wire format float8_e4m3 in host"},
      {add, [](auto& r) { r.cacheable = true; }, "a slot (expected none: it is not the same the"},
      {form,
       [](auto& r) { r.numbers = {0, 1}; },
       "ranks [0, 1] (expected the sender's among them)"},
      {kReduce, [=](auto& r) { r = leave; }, "the set of all ranks (expected one that was formed)"},
      // Who forms a set is waited for, and nobody else.
      {kReduce, [=](auto& r) { r = form, r.name = "x"; }, only_sets},
      {form, [=](auto& r) { r = kReduce, r.name = form.name; }, only_sets},
      {kReduce, [=](auto& r) { r.tensors.resize(1 + 4, half); }, "a group of 5 tensors" + most},
      // What overflows to something small.
      {kGather,
       [](auto& r) { r.tensors[0].shape = {1, 1LL << 62}; },
       "shape [0, 4611686018427387904]" + most},
  };
  for (const std::int64_t rows : {half.shape[0], kMost}) {
    const auto change = [=](Request& r) { r.tensors[0].shape[0] = rows; };
    lies.push_back({kScatter, change, "shape [" + std::to_string(rows) + ", 4]" + most});
    lies.push_back({kReduce, change, "shape [" + std::to_string(rows) + ", 4]" + most});
    lies.push_back({kGather, change, "shape [" + std::to_string(rows) + ", 4]" + most, false});
  }
  for (const Numbers& numbers : {Numbers{}, {kMost}, {2, 1}, {1, 1}, {0, 3}}) {
    const auto change = [=](Request& r) { r.numbers = numbers; };
    const std::string text = shape_text(numbers);
    lies.push_back(
        {add, change, "ranks " + text + " (expected different ones of 0..2, ascending)"});
    lies.push_back({remove, change, "process sets " + text + " (expected one that was added)"});
  }
  for (const Numbers& splits : {Numbers{}, {1, 1}, {1, 1, 1, 0}, {1, 1, 2}, {kMost, kMost, 5}}) {
    const auto change = [=](Request& r) { r.numbers = splits; };
    const std::string text =
        splits.size() == 3
            ? "splits " + shape_text(splits) + " (expected a sum of at most 3, the first dimension)"
            : std::to_string(splits.size()) + " splits (expected one per rank, 3)";
    lies.push_back({exchange(), change, text, false});
  }
  expect_lost(lies, true);
}

TEST(HostileRank, PartsThatDoNotGoWithTheOperation) {
  const std::vector<std::pair<Request, OwnPart>> parts = {
      {kReduce, {0, {}}},  // on a GPU and not on one
      {kReduce, {-1, {2}}},
      {kGather, {-1, {}}},
      {kGather, {-1, {1, 2}}},
      {exchange(), {-1, {}}},
  };
  for (const auto& [request, part] : parts) {
    const auto lie = [&, &part = part](RoundMessage& message) {
      message.requests[0].senders = std::make_shared<Senders>(kLiar, part);
    };
    expect_lost(request, lie, "with rows or a GPU of another operation");
  }
}

TEST(HostileRank, WhatOthersSayAndWhatNobodyProposes) {
  const auto of_rank = [](int rank) {
    return [=](RoundMessage& message) { message.requests = {SharedRequest(kReduce, rank, 0)}; };
  };
  const auto proposal = [](int rank, std::uint64_t unit_bytes, std::uint32_t lanes) {
    return [=](RoundMessage& m) { m.proposal = Proposal{rank, {1, unit_bytes, lanes}}; };
  };
  const auto answer = [](RoundMessage& message) { message.answers.ranks = RankSet(1); };
  const std::string speaks = ", for some of which it cannot speak)";
  const std::vector<std::pair<Lie, std::string>> lies = {
      {of_rank(0), "(ranks 0..0" + speaks},
      {answer, "(ranks 1..1" + speaks},
      {proposal(0, 1 << 20, 1), "(ranks 0..0" + speaks},
      {of_rank(kSize), "(rank 3)"},
      {of_rank(kMostRanks - 1), "(rank 65535)"},
      {proposal(kLiar, 0, 1), "unit_bytes 0, lanes 1"},
      {proposal(kLiar, 1 << 20, 0), "unit_bytes 1048576, lanes 0"},
  };
  for (const auto& [lie, text] : lies) {
    expect_lost(kReduce, lie, text);
  }
}

/// Whatever way the round took, it must say about a rank what that rank has said.
TEST(HostileRank, ARankKnowsItsOwnRequestsAndBits) {
  Request rows = kGather;
  rows.tensors[0].shape[0] = 2000;
  Request name = kGather;
  name.name = "y";
  for (const std::vector<Request>& told : {std::vector<Request>{rows}, {name}, {}}) {
    Negotiator rank(0, 2, 16, Parameters{0, 1 << 20, 1});
    Submitted gather{kGather};
    rank.submit(gather);
    Bytes share;
    rank.contribute(share);
    RoundMessage message;
    for (const Request& request : told) {
      message.requests.emplace_back(request, 0, 0);
    }
    EXPECT_THROW(rank.apply(encoded(message)), Error) << told.size();
  }
  Negotiator rank(0, 2, 16, Parameters{0, 1 << 20, 1});
  RoundMessage message;
  message.ready.grow(64);
  message.ready.set(3);
  EXPECT_THROW(rank.apply(encoded(message)), Error) << "a bit of no slot";
}

TEST(HostileRank, WhoAsksTwiceIsNamed) {
  Negotiator rank(0, 2, 16, Parameters{0, 1 << 20, 1});
  Status status;
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(status.ok()) << status.message();
    Bytes share;
    rank.contribute(share);
    RoundMessage message = decoded(share);
    message.requests = {SharedRequest(kReduce, 1, 0)};
    combine_rounds(share, encoded(message), RankBlock(std::vector<int>{1}));
    status = status_of([&] { rank.apply(share); });
  }
  expect_error(status, Code::kInternal, {"rank 1 submitted something twice"});
}

/// A job of a few rounds. What happens follows from the seed.
class Job {
 public:
  explicit Job(std::uint32_t seed)
      : liar_(seed),
        size_(2 + static_cast<int>(liar_.below(3))),
        false_rank_(static_cast<int>(liar_.below(static_cast<std::size_t>(size_)))) {
    for (int rank = 0; rank < size_; ++rank) {
      ranks_.push_back(std::make_unique<LoneRank>(rank, size_));
    }
  }

  void run() {
    for (std::size_t left = 2 + liar_.below(4); left > 0 && !over_; --left) {
      submit();
      round();
    }
  }

  bool over() const { return over_; }
  std::size_t agreed() const { return agreed_; }

 private:
  /// What came of each operation, by its label.
  using Results = std::map<std::string, std::string>;

  void submit() {
    for (std::size_t left = 1 + liar_.below(3); left > 0; --left) {
      Request request = any_request();
      for (int rank = 0; rank < size_; ++rank) {
        if (request.kind == OpKind::kAllgather) {
          request.tensors[0].shape[0] = static_cast<std::int64_t>(liar_.below(4));
        }
        // One of them may be late, or of another mind.
        Request mine = request;
        if (rank == size_ - 1 && liar_.chance(8)) {
          mine.tensors[0].shape.assign(1, 5);
          mine.numbers.clear();
        }
        if (!liar_.chance(12) && !(request.kind == OpKind::kJoin && liar_.chance(2))) {
          try {
            ranks_[static_cast<std::size_t>(rank)]->submit(mine);
          } catch (const Error&) {
            // Not what a rank may submit.
          }
        }
      }
    }
  }

  Request any_request() {
    static constexpr OpKind kOften[] = {OpKind::kAllreduce, OpKind::kAllgather, OpKind::kAlltoall};
    const auto any = static_cast<OpKind>(liar_.below(kOpKinds));
    const OpKind kind = liar_.chance(4) ? kOften[liar_.below(std::size(kOften))] : any;
    Request request =
        make_request(std::string(name_of(kind)) + "." + static_cast<char>('a' + liar_.below(2)),
                     kind,
                     {1 + static_cast<std::int64_t>(liar_.below(40)), 3});
    request.tensors[0].dtype = liar_.chance(2) ? DataType::kFloat32 : DataType::kInt8;
    request.cacheable = !changes_sets(kind) && kind != OpKind::kJoin;
    if (!request.cacheable) {
      request.tensors[0].shape.clear();
    }
    request.process_set =
        kind == OpKind::kLeaveProcessSet || (request.cacheable && liar_.chance(3)) ? 1 : 0;
    if (kind == OpKind::kJoin) {
      request.name.clear();
    } else if (kind == OpKind::kAllreduce && liar_.chance(3)) {
      request.tensors = {request.tensors[0], {DataType::kInt8, {5}}, {DataType::kFloat64, {0}}};
    } else if (kind == OpKind::kAlltoall) {
      const std::vector<int>* members =
          ranks_[0]->negotiator().process_sets().members(request.process_set);
      request.numbers.assign(members == nullptr ? 1 : members->size(), 1);
      request.tensors[0].shape[0] = static_cast<std::int64_t>(request.numbers.size());
    } else if (kind == OpKind::kRemoveProcessSet) {
      request.numbers = {1};
    } else if (adds_set(kind)) {
      request.numbers = {0, size_ - 1};
    }
    return request;
  }

  void round() {
    std::vector<Bytes> shares(ranks_.size());
    for (std::size_t rank = 0; rank < shares.size(); ++rank) {
      ranks_[rank]->negotiator().contribute(shares[rank]);
    }
    Bytes& lie = shares[static_cast<std::size_t>(false_rank_)];
    if (!liar_.chance(3)) {
      lie = liar_.lie(lie, false_rank_, size_);
    }
    std::optional<Results> everyones;
    std::optional<bool> ended;
    bool in_set = false;  // The lie is about a set, of which other ranks only know who is in it.
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == false_rank_) {
        continue;
      }
      Results results;
      const bool failed = !take_part(rank, shares, results);
      in_set = in_set || error_.find("(process set 1)") != std::string::npos;
      ASSERT_TRUE(in_set || ended.value_or(failed) == failed)
          << "one goes on, another does not: " << error_;
      ended = failed || ended.value_or(false);
      for (const auto& [label, result] : everyones.value_or(results)) {
        const auto found = results.find(label);
        if (found != results.end()) {
          ASSERT_EQ(result, found->second) << label;
        }
      }
      agreed_ += results.size();
      everyones = std::move(results);
    }
    over_ = *ended;
    try {
      Results results;
      over_ = !take_part(false_rank_, shares, results) || over_;
    } catch (...) {
      over_ = true;
    }
  }

  bool take_part(int rank, const std::vector<Bytes>& shares, Results& results) {
    largest_allocation = 0;
    std::size_t bytes = 0;
    try {
      Bytes combined = shares[static_cast<std::size_t>(rank)];
      for (int other = 0; other < size_; ++other) {
        bytes += shares[static_cast<std::size_t>(other)].size();
        if (other != rank) {
          combine_rounds(combined,
                         shares[static_cast<std::size_t>(other)],
                         RankBlock(std::vector<int>{other}));
        }
      }
      results = ranks_[static_cast<std::size_t>(rank)]->apply(combined);
    } catch (const Error& error) {
      error_ = error.what();
      return false;
    }
    EXPECT_LT(largest_allocation, (4U << 20) + 64 * bytes);
    return true;
  }

  Liar liar_;
  int size_;
  int false_rank_;
  std::vector<std::unique_ptr<LoneRank>> ranks_;
  bool over_ = false;
  std::string error_;  ///< the last one of a rank
  std::size_t agreed_ = 0;
};

void run_jobs(std::uint32_t jobs) {
  std::size_t over = 0;
  std::size_t agreed = 0;
  for (std::uint32_t seed = 0; seed < jobs; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Job job(seed);
    job.run();
    over += job.over() ? 1 : 0;
    agreed += job.agreed();
    if (testing::Test::HasFatalFailure()) {
      return;
    }
  }
  // Lies that are all found, or never, would test little.
  EXPECT_GT(over, jobs / 4);
  EXPECT_LT(over, jobs - jobs / 50);
  EXPECT_GT(agreed, jobs);
}

TEST(HostileRank, HonestRanksComeToTheSameEnd) { run_jobs(2'000); }
TEST(HostileRankNightly, HonestRanksComeToTheSameEnd) { run_jobs(10'000); }

}  // namespace
}  // namespace aiacc
