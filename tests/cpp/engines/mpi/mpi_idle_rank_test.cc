// Ranks of an MPI job that are through with what they do in MPI while others are not, or that leave
// something out. Part of mpi_engine_test, which says how to run it.

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "csrc/base/log.h"
#include "csrc/control/control_plane.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/mpi/mpi_job.h"
#include "tests/cpp/support/peers/deserters.h"

namespace aiacc {
namespace {

/// Where the ranks meet without MPI: whoever waits there makes no call of MPI.
class Outside : public MpiJob {
 public:
  ControlPlane& plane() { return plane_; }

  /// Blocks until all ranks are here. Throws if one does not come: it waits inside MPI.
  void meet() {
    Bytes nothing;
    plane_.all_reduce(nothing, [](Bytes&, const Bytes&, const RankBlock&) {}, Runner::kLoop);
  }

  /// At the end: nobody hangs up while others are still in `meet`.
  static void leave() { mpi_all_gather(""); }

 private:
  ControlPlane plane_{&connector(), {20}};
};

TEST(MpiIdleRankTest, HoldsNoOtherUpInMakingAnEngine) {
  Outside outside;
  for (int lanes = 1; lanes < 5; ++lanes) {
    const auto engine = create_mpi_engine(outside.context(lanes));
    outside.meet();
  }
  Outside::leave();
}

/// Also on a lane's first operation, for which MPI may have to connect.
TEST(MpiIdleRankTest, HoldsNoOtherUpInAnOperation) {
  Outside outside;
  const int rank = outside.rank();
  const int size = outside.size();
  const auto engine = create_mpi_engine(outside.context(3));
  for (int lane = 0; lane <= engine->express_lane(); ++lane) {
    for (const std::size_t count : {1, 30011}) {
      check_all_reduce(*engine, lane, rank, size, count, DataType::kFloat32, ReduceOp::kSum);
      outside.meet();
      check_broadcast(*engine, lane, rank, lane % size, count);
      outside.meet();
      check_all_gather(*engine, lane, rank, size, count);
      outside.meet();
    }
  }
  Outside::leave();
}

/// The root is through before any other rank begins.
TEST(MpiIdleRankTest, HoldsNoOtherUpWithAllThatItHasSent) {
  Outside outside;
  const auto engine = create_mpi_engine(outside.context(1));
  double data = 0;
  const auto broadcast_often = [&] {
    for (int i = 0; i < 20; ++i) {
      engine->broadcast(0, &data, sizeof data, 0);
    }
  };
  if (outside.rank() == 0) {
    broadcast_often();
  }
  outside.meet();
  if (outside.rank() != 0) {
    broadcast_often();
  }
  outside.meet();
  Outside::leave();
}

class MpiDeadUnitTest : public testing::TestWithParam<OpKind> {};

/// The last rank leaves an operation out; within a node and between nodes alike. Afterwards MPI is
/// as good as new; a job that ended without a new engine would leave MPI as it is, and mpirun kills
/// the ranks that have not ended when the first one has.
TEST_P(MpiDeadUnitTest, AnOperationThatOneRankLeavesOutEnds) {
  Outside outside;
  const int rank = outside.rank();
  const int size = outside.size();
  if (size == 1) {
    GTEST_SKIP() << "one rank never waits";
  }
  configure_log(LogLevel::kFatal, -1);
  {
    std::unique_ptr<Engine> engine = create_mpi_engine(outside.context(2));
    if (rank == size - 1) {
      engine = std::make_unique<Deserter>(std::move(engine));
    }
    Timeline timeline(rank);
    CoordinatorOptions options = CoordinatorWorld().options;
    options.unit_timeout_s = 1;
    options.parameters.unit_bytes = 1 << 20;
    Coordinator coordinator(outside.plane(), *engine, timeline, options);
    check_desertion(coordinator, GetParam(), rank, size, size - 1);
  }
  const std::unique_ptr<Engine> engine = create_mpi_engine(outside.context(2));
  check_all_reduce(*engine, 0, rank, size, 50001, DataType::kFloat32, ReduceOp::kSum);
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         MpiDeadUnitTest,
                         testing::Values(OpKind::kAllreduce, OpKind::kAlltoall),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace aiacc
