// Ranks of an MPI job that are said to be on several hosts, whatever MPI makes of that: shared
// memory inside these hosts, MPI between them. Part of mpi_engine_test, which says how to run it.

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/control/tcp/connector.h"
#include "csrc/engines/mpi/mpi_loader.h"
#include "csrc/engines/registry.h"
#include "tests/cpp/engines/engine_checks.h"

namespace aiacc {
namespace {

constexpr int kLanes = 2;

/// Numbers of ranks that follow each other on a host; 0: ranks take the two hosts in turn.
class MpiHierarchicalTest : public testing::TestWithParam<int> {
 protected:
  MpiHierarchicalTest()
      : identity_(mpi_initialize(0, 30)),
        listener_("127.0.0.1"),
        connector_(
            listener_, mpi_all_gather(listener_.address()), identity_.rank, {1, 2, 3}, 1, 30) {}

  int rank() const { return identity_.rank; }
  int size() const { return identity_.size; }

  std::unique_ptr<Engine> create() {
    EngineContext context;
    context.rank = rank();
    context.size = size();
    context.lanes = kLanes;
    context.connector = &connector_;
    context.host_of.clear();
    for (int member = 0; member < size(); ++member) {
      context.host_of.push_back(GetParam() == 0 ? member % 2 : member / GetParam());
    }
    return create_engine("hierarchical-mpi", context);
  }

 private:
  const MpiIdentity identity_;
  Listener listener_;
  Connector connector_;
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
  engine->all_reduce(1, mine.data(), mine.data(), kCount, {DataType::kFloat32, ReduceOp::kSum});
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
      std::vector<int> members(static_cast<std::size_t>(size()));
      std::iota(members.begin(), members.end(), 0);
      members.erase(members.begin() + out);
      if (rank() != out) {
        const auto part = engine->split(members, static_cast<std::uint32_t>(out));
        check_every_operation(
            *part, 1, rank() - (rank() > out ? 1 : 0), static_cast<int>(members.size()));
      }
    }
    check_every_operation(*engine, 0, rank(), size());
  }
}

/// Rank 0 never comes. Afterwards memory and MPI are as good as new.
TEST_P(MpiHierarchicalTest, AnAbortEndsWaitsOnBothLevels) {
  if (size() == 1) {
    GTEST_SKIP() << "one rank is never blocked";
  }
  for (int round = 0; round < 3; ++round) {
    const auto engine = create();
    std::atomic<bool> running{rank() == 0};
    Status seen;
    std::thread blocked([&] {
      std::vector<float> data(1'000'000, 1.0f);
      running = true;
      try {
        while (rank() != 0) {
          engine->all_reduce(
              0, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum});
        }
      } catch (const Error& error) {
        seen = error.status();
      }
    });
    while (!running) {
      std::this_thread::yield();
    }
    engine->abort(Status(Code::kShutdown, "stop now"));
    blocked.join();
    EXPECT_EQ(rank() == 0 ? "" : "stop now", seen.message());
  }
  const auto engine = create();
  check_every_operation(*engine, 0, rank(), size());
}

INSTANTIATE_TEST_SUITE_P(RanksOfAHost, MpiHierarchicalTest, testing::Values(0, 1, 2, 8));

}  // namespace
}  // namespace aiacc
