// Ranks that do anything that ranks may do, in any order, against NegotiatorModel: every rank gets
// what the model says, in the very round, in the same order.

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/request_checks.h"
#include "tests/cpp/core/negotiation/negotiator_model.h"
#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

/// All that a rank is told.
std::string text_of(const Response& response) {
  const std::string status = response.status.ok() ? "ok" : response.status.message();
  std::string text = std::to_string(reinterpret_cast<std::uintptr_t>(response.submitted)) + ": " +
                     status + " (code " + std::to_string(static_cast<int>(response.status.code())) +
                     ") " + shape_text(response.first_extents) + " value " +
                     std::to_string(response.value);
  if (response.devices != nullptr) {
    text += " GPUs " + shape_text({response.devices->begin(), response.devices->end()});
  }
  if (response.zeros != nullptr) {
    text += std::string(" zeros for ") + name_of(response.zeros->kind) + " " +
            response.zeros->name + shape_text(response.zeros->tensors[0].shape);
  }
  return text + (response.joined ? " without residuals" : "");
}

/// What must happen in some job of a test, by a word of its text.
constexpr const char* kWords[] = {
    "ok", "zeros", "residuals", "GPUs", "joined", "left", "removed", "already", "agree"};
/// How often it has.
using Seen = std::map<std::string, std::size_t>;

class Job {
 public:
  Job(int size, std::uint32_t seed)
      : random_(seed),
        size_(size),
        capacity_(std::vector<std::size_t>{0, 1, 3, 4096}[seed % 4]),
        patience_(seed % 8 < 4 ? 4 : ResponseCache::kPatience),
        model_(size, capacity_, patience_),
        ranks_(size, capacity_, seed, patience_),
        seed_(seed),
        users_(static_cast<std::size_t>(size)) {}

  void run(int rounds, Seen& seen) {
    for (int round = 0; round < rounds && !testing::Test::HasFatalFailure(); ++round) {
      SCOPED_TRACE("seed " + std::to_string(seed_) + ", round " + std::to_string(round));
      if (below(3) == 0) {
        everybody();
      }
      for (int rank = 0; rank < size_; ++rank) {
        for (std::size_t left = below(4); left > 0; --left) {
          act(rank);
        }
      }
      check(seen);
    }
  }

 private:
  /// What a rank has done that it must keep in mind.
  struct User {
    bool joined = false;
    std::set<std::uint32_t> left;  ///< process sets
    int changes = 0;               ///< of process sets, which all ranks make in one order
  };

  std::size_t below(std::size_t limit) { return random_() % limit; }
  bool chance(std::size_t one_in) { return below(one_in) == 0; }

  void act(int rank) {
    User& user = users_[static_cast<std::size_t>(rank)];
    const std::uint32_t set = any_set();
    Request leave = uncached("leave_process_set", OpKind::kLeaveProcessSet);
    leave.process_set = set;
    if (chance(model_.joining() ? 3 : 100)) {
      submit(rank, uncached("join", OpKind::kJoin));
      user.joined = true;
    } else if (chance(10)) {
      submit(rank, change_of_sets(user.changes++));
    } else if (chance(8)) {
      form(rank);
    } else if (set != 0 && chance(6)) {
      submit(rank, leave);
      user.left.insert(set);
    } else {
      submit(rank, tensor(rank, set, below(kNames)));
    }
  }

  /// The whole set is in step.
  void everybody() {
    const std::uint32_t set = any_set();
    const std::size_t name = below(kNames);
    for (int rank = 0; rank < size_; ++rank) {
      submit(rank, tensor(rank, set, name));
    }
    step_ += chance(4) ? 1 : 0;
  }

  std::uint32_t any_set() {
    std::uint32_t set = 0;
    do {
      set = static_cast<std::uint32_t>(below(1 + model_.last_set()));
    } while (model_.sets().members(set) == nullptr);
    return set;
  }

  /// Unless the rank may not, or an operation of the name is under way.
  void submit(int rank, const Request& request) {
    const User& user = users_[static_cast<std::size_t>(rank)];
    const bool busy = model_.pending(rank).count({request.process_set, request.name}) == 1;
    if (user.joined || user.left.count(request.process_set) == 1 || busy ||
        model_.sets().index_of(request.process_set, rank) < 0) {
      return;
    }
    if (request.kind != OpKind::kJoin) {
      check_request(request, *model_.sets().members(request.process_set));
    }
    model_.submit(rank, request, ranks_.submit(rank, request));
  }

  static Request uncached(const std::string& name, OpKind kind) {
    Request request = make_request(name, kind, {});
    request.cacheable = false;
    return request;
  }

  /// Ranks of which most tell the same members.
  void form(int rank) {
    const std::size_t number = below(3);
    Request request = uncached(kFormedNames + std::to_string(number), OpKind::kFormProcessSet);
    std::mt19937 alike(static_cast<std::uint32_t>(number) + (chance(30) ? 10 : 0) + seed_);
    for (int member = 0; member < size_; ++member) {
      if (alike() % 3 == 0 || member == rank) {
        request.numbers.push_back(member);
      }
    }
    submit(rank, request);
  }

  /// The same on all ranks, but for a few.
  Request change_of_sets(int number) {
    std::mt19937 alike(static_cast<std::uint32_t>(number) * 100 + seed_);
    const bool adds = alike() % 2 == 0;
    Request request = uncached("process_set.noname.0." + std::to_string(number),
                               adds ? OpKind::kAddProcessSet : OpKind::kRemoveProcessSet);
    const std::uint32_t ranks = 1 + alike() % 7;
    for (int member = 0; adds && member < size_; ++member) {
      if ((ranks >> (member % 3) & 1U) == 1) {
        request.numbers.push_back(member);
      }
    }
    if (request.numbers.empty() || chance(10U * static_cast<std::size_t>(size_))) {
      request.numbers = {adds ? 0 : static_cast<std::int64_t>(alike() % 6)};
    }
    return request;
  }

  static constexpr std::size_t kNames = 10;

  /// As all ranks submit it at this step, or a little different.
  Request tensor(int rank, std::uint32_t set, std::size_t number) {
    static constexpr OpKind kKinds[kNames] = {OpKind::kAllgather,
                                              OpKind::kAlltoall,
                                              OpKind::kBroadcast,
                                              OpKind::kBarrier,
                                              OpKind::kReducescatter};  // then all-reduces
    static constexpr ReduceOp kOps[] = {
        ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
    const std::vector<int>& members = *model_.sets().members(set);
    Request request = make_request(std::string(1, static_cast<char>('a' + number)),
                                   kKinds[number],
                                   {2 + static_cast<std::int64_t>(step_ % 2), 3});
    request.process_set = set;
    request.root = request.kind == OpKind::kBroadcast ? members.back() : 0;
    if (number == 0) {
      request.tensors[0].shape[0] = step_ % 3 == 0 ? static_cast<std::int64_t>(below(4)) : 2;
      request.tensors = {request.tensors[0], {DataType::kInt8, {step_ % 3 == 1 ? rank % 3 : 5}}};
    } else if (number == 1) {
      request.numbers.assign(members.size(), 0);
      request.numbers[below(members.size())] = 1;
    } else if (number == 5) {
      request.op = kOps[step_ % 5];
      request.tensors = {request.tensors[0], {DataType::kFloat64, {5}}, {DataType::kInt8, {2, 2}}};
    } else if (number == 6) {
      request.cacheable = false;
      const bool power_of_two = (members.size() & (members.size() - 1)) == 0;
      request.op = power_of_two ? ReduceOp::kAdasum : ReduceOp::kAverage;
    } else if (number == 7) {
      request.device = step_ % 4 == 0 ? -1 : (rank + (chance(9) ? 1 : 0)) % 8;
    } else if (number == 8) {
      request.prescale = std::nan("");
    }
    if (chance(15U * static_cast<std::size_t>(size_))) {
      request.tensors[0].shape[1] = 4;
    }
    if (number > 1 && number < 5 && chance(15U * static_cast<std::size_t>(size_))) {
      request.kind = OpKind::kAllreduce;
      request.root = 0;
    }
    return request;
  }

  void check(Seen& seen) {
    std::map<int, std::uint64_t> proposals;
    for (int rank = 0; rank < size_; ++rank) {
      if (chance(20)) {
        proposals[rank] = 1000 + below(1000);
        ranks_.of(rank).propose({77, proposals[rank], 1});
      }
    }
    const bool answers = std::exchange(asked_, chance(5));
    if (asked_) {
      ranks_.of(static_cast<int>(below(static_cast<std::size_t>(size_)))).ask(kFlagStallQuery);
    }
    const std::vector<RoundOutcome> outcomes = ranks_.round();
    const std::vector<std::vector<Response>> expected = model_.round();
    for (int rank = 0; rank < size_; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      const RoundOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      check(rank, outcome.ready, expected[static_cast<std::size_t>(rank)], seen);
      const Negotiator& negotiator = ranks_.of(rank);
      ASSERT_EQ(negotiator.urgent(), asked_ || model_.urgent(rank));
      ASSERT_EQ(negotiator.asked() != 0, asked_);
      ASSERT_EQ(negotiator.waiting(), model_.pending(rank).size());
      ASSERT_EQ(negotiator.process_sets().size(), model_.sets().size());
      for (std::uint32_t id = 0; id <= model_.last_set(); ++id) {
        const std::vector<int>* got = negotiator.process_sets().members(id);
        const std::vector<int>* modelled = model_.sets().members(id);
        ASSERT_EQ(got == nullptr, modelled == nullptr);
        ASSERT_TRUE(got == nullptr || *got == *modelled);
      }
      if (!proposals.empty()) {
        ASSERT_EQ(negotiator.parameters().unit_bytes, proposals.begin()->second);
      }
      ASSERT_EQ(negotiator.parameters().epoch, epoch_ + (proposals.empty() ? 0 : 1));
      ASSERT_EQ(outcome.answers.ranks, answers ? RankSet(0, size_ - 1) : RankSet());
    }
    epoch_ += proposals.empty() ? 0 : 1;
    seen["answers"] += answers ? 1 : 0;
    seen["urgent"] += model_.urgent(0) ? 1 : 0;
  }

  void check(int rank,
             const std::vector<Response>& ready,
             const std::vector<Response>& expected,
             Seen& seen) {
    std::vector<std::string> texts[2];
    for (const Response& response : ready) {
      texts[0].push_back(text_of(response));
    }
    for (const Response& response : expected) {
      texts[1].push_back(text_of(response));
      for (const char* word : kWords) {
        seen[word] += texts[1].back().find(word) != std::string::npos ? 1 : 0;
      }
    }
    ASSERT_EQ(texts[0], texts[1]);
    if (model_.pending(rank).count({0, "join"}) == 0) {
      users_[static_cast<std::size_t>(rank)].joined = false;
    }
  }

  std::mt19937 random_;
  int size_;
  std::size_t capacity_;
  std::uint64_t patience_;
  NegotiatorModel model_;
  NegotiatingRanks ranks_;
  std::uint32_t seed_;
  std::vector<User> users_;
  std::size_t step_ = 0;  ///< of the program, which changes what is submitted under a name
  bool asked_ = false;
  std::uint32_t epoch_ = 0;
};

class NegotiatorRandomTest : public testing::TestWithParam<int> {
 protected:
  /// Runs jobs of that many ranks, one for each of so many seeds.
  void run(std::uint32_t seeds) {
    const int size = GetParam();
    Seen seen;
    for (std::uint32_t seed = 0; seed < seeds && !HasFatalFailure(); ++seed) {
      Job(size, seed).run(size < 100 ? 100 : 20, seen);
    }
    for (const auto& [what, times] : seen) {
      EXPECT_TRUE(times > 0 || size == 1 || size > 10) << "it never comes to this: " << what;
    }
  }
};
using NegotiatorRandomNightlyTest = NegotiatorRandomTest;

TEST_P(NegotiatorRandomTest, EveryRankIsToldWhatTheModelSays) {
  run(GetParam() < 10 ? 25 : GetParam() < 100 ? 2 : 1);
}
INSTANTIATE_TEST_SUITE_P(Sizes, NegotiatorRandomTest, testing::Values(1, 2, 3, 4, 7, 65, 300));

TEST_P(NegotiatorRandomNightlyTest, EveryRankIsToldWhatTheModelSays) { run(200); }
INSTANTIATE_TEST_SUITE_P(Sizes, NegotiatorRandomNightlyTest, testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace aiacc
