// Ranks of an MPI job that are said to be on several hosts, whatever MPI makes of that: shared
// memory inside these hosts, MPI between them. Part of mpi_engine_test, which says how to run it.

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/members.h"
#include "csrc/engines/registry.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/mpi/mpi_job.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

/// Numbers of ranks that follow each other on a host; 0: ranks take the two hosts in turn.
class MpiHierarchicalTest : public testing::TestWithParam<int> {
 protected:
  int rank() const { return job_.rank(); }
  int size() const { return job_.size(); }

  std::unique_ptr<Engine> create() {
    EngineContext context = job_.context(2);
    context.host_of.clear();
    for (int member = 0; member < size(); ++member) {
      context.host_of.push_back(GetParam() == 0 ? member % 2 : member / GetParam());
    }
    return create_engine("hierarchical-mpi", context);
  }

 private:
  MpiJob job_;
};

TEST_P(MpiHierarchicalTest, DoesEveryOperationOnEveryLane) {
  const auto engine = create();
  EXPECT_STREQ("hierarchical-mpi", engine->name());
  for (int lane = 0; lane <= engine->express_lane(); ++lane) {
    check_every_operation(*engine, lane, rank(), size());
  }
  for (const DataType dtype : all_dtypes()) {
    check_all_reduce(*engine, 0, rank(), size(), 1001, dtype, ReduceOp::kMax);
  }
  check_all_reduce(*engine, 1, rank(), size(), 1'500'007, DataType::kFloat32, ReduceOp::kSum);
}

TEST_P(MpiHierarchicalTest, AllRanksGetTheSameBits) {
  const auto engine = create();
  constexpr std::size_t kCount = 300'001;
  std::vector<float> mine(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    mine[i] = 1.0F / static_cast<float>(i + 1 + 7 * static_cast<std::size_t>(rank()));
  }
  engine->all_reduce(1, mine.data(), mine.data(), kCount, kSum);
  std::vector<float> first = mine;
  engine->broadcast(0, first.data(), kCount * sizeof(float), 0);
  expect_equal_bits(first, mine, "rank " + std::to_string(rank()));
}

/// All but one, which come and go together with those of all; twice, so that the second ones take
/// over what the first have left.
TEST_P(MpiHierarchicalTest, Splits) {
  for (int round = 0; round < 2; ++round) {
    const auto engine = create();
    for (int out = 0; out < size() && size() > 1; ++out) {
      std::vector<int> members = all_ranks(size());
      members.erase(members.begin() + out);
      if (rank() != out) {
        const auto part = engine->split(members, static_cast<std::uint32_t>(out));
        check_every_operation(*part, 1, index_among(members, rank(), size()), size() - 1);
      }
    }
    check_every_operation(*engine, 0, rank(), size());
  }
}

/// Rank 0 never comes. Afterwards memory and MPI are as good as new.
TEST_P(MpiHierarchicalTest, AnAbortEndsWaitsOnBothLevels) {
  for (int round = 0; round < 3; ++round) {
    const auto engine = create();
    BlockedCall blocked([&] {
      std::vector<float> data(1'000'000, 1.0f);
      while (rank() != 0) {
        engine->all_reduce(0, data.data(), data.data(), data.size(), kSum);
      }
    });
    engine->abort(Status(Code::kShutdown, "stop now"));
    EXPECT_EQ(rank() == 0 ? "" : "stop now", blocked.join().message());
  }
  const auto engine = create();
  check_every_operation(*engine, 0, rank(), size());
}

INSTANTIATE_TEST_SUITE_P(RanksOfAHost, MpiHierarchicalTest, testing::Values(0, 1, 2, 8));

}  // namespace
}  // namespace aiacc
