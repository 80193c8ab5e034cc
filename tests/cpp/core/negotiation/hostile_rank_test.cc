// One rank of a job lies; the honest ones decode, negotiate, plan and move on. Nothing that it says
// may break their memory, and they come to the same end.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/allocations.h"
#include "tests/cpp/support/liar.h"
#include "tests/cpp/support/lone_rank.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

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
  void submit() {
    for (std::size_t left = 1 + liar_.below(3); left > 0; --left) {
      Request request = any_request();
      for (int rank = 0; rank < size_; ++rank) {
        if (request.kind == OpKind::kAllgather) {
          request.shape[0] = static_cast<std::int64_t>(liar_.below(4));
        }
        // One of them may be late, or of another mind.
        Request mine = request;
        if (rank == size_ - 1 && liar_.chance(8)) {
          mine.shape.assign(1, 5);
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
    static constexpr OpKind kKinds[] = {OpKind::kAllreduce,
                                        OpKind::kAllreduce,
                                        OpKind::kAllgather,
                                        OpKind::kAllgather,
                                        OpKind::kBroadcast,
                                        OpKind::kBarrier,
                                        OpKind::kAlltoall,
                                        OpKind::kAlltoall,
                                        OpKind::kReducescatter,
                                        OpKind::kAddProcessSet,
                                        OpKind::kRemoveProcessSet,
                                        OpKind::kFormProcessSet,
                                        OpKind::kLeaveProcessSet,
                                        OpKind::kJoin};
    const OpKind kind = kKinds[liar_.below(std::size(kKinds))];
    Request request =
        make_request(std::string(name_of(kind)) + "." + static_cast<char>('a' + liar_.below(2)),
                     kind,
                     {1 + static_cast<std::int64_t>(liar_.below(40)), 3});
    request.dtype = liar_.chance(2) ? DataType::kFloat32 : DataType::kInt8;
    const bool has_shape = !changes_sets(kind) && kind != OpKind::kJoin;
    request.cacheable = has_shape;
    request.process_set =
        kind == OpKind::kLeaveProcessSet || (has_shape && liar_.chance(3)) ? 1 : 0;
    if (!has_shape) {
      request.shape.clear();
    }
    if (kind == OpKind::kJoin) {
      request.name.clear();
    }
    if (kind == OpKind::kAllreduce && liar_.chance(3)) {
      request.more = {{DataType::kInt8, {5}}, {DataType::kFloat64, {0}}};
    }
    if (kind == OpKind::kAlltoall) {
      const std::vector<int>* members =
          ranks_[0]->negotiator().process_sets().members(request.process_set);
      request.numbers.assign(members == nullptr ? 1 : members->size(), 1);
      request.shape[0] = static_cast<std::int64_t>(request.numbers.size());
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
      ranks_[rank]->negotiator().contribute(shares[rank], liar_.chance(4) ? 0U : kFlagMoving);
    }
    Bytes& lie = shares[static_cast<std::size_t>(false_rank_)];
    if (!liar_.chance(3)) {
      lie = liar_.lie(lie, false_rank_, size_);
    }
    std::optional<std::map<std::string, std::string>> everyones;
    std::optional<bool> ended;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == false_rank_) {
        continue;
      }
      std::map<std::string, std::string> results;
      const bool failed = !take_part(rank, shares, results);
      ASSERT_EQ(ended.value_or(failed), failed) << "one rank goes on, another does not";
      ended = failed;
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
      std::map<std::string, std::string> results;
      over_ = !take_part(false_rank_, shares, results) || over_;
    } catch (...) {
      over_ = true;
    }
  }

  bool take_part(int rank,
                 const std::vector<Bytes>& shares,
                 std::map<std::string, std::string>& results) {
    largest_allocation = 0;
    std::size_t bytes = 0;
    try {
      Bytes combined = shares[static_cast<std::size_t>(rank)];
      for (int other = 0; other < size_; ++other) {
        bytes += shares[static_cast<std::size_t>(other)].size();
        if (other != rank) {
          combine_rounds(combined, shares[static_cast<std::size_t>(other)], {other, other});
        }
      }
      results = ranks_[static_cast<std::size_t>(rank)]->apply(combined);
    } catch (const Error&) {
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

TEST(HostileRank, TenThousandJobs) { run_jobs(10'000); }

/// By hand, with --gtest_also_run_disabled_tests.
TEST(HostileRank, DISABLED_TwoHundredThousandJobs) { run_jobs(200'000); }

}  // namespace
}  // namespace aiacc
