// Ranks of an MPI job that disagree about what they have agreed on. Part of mpi_engine_test, which
// says how to run it.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/log.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/control/tcp/tcp_plane.h"
#include "csrc/engines/mpi/mpi_loader.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/support/peers/deserter.h"
#include "tests/cpp/support/peers/desertion.h"

namespace aiacc {
namespace {

class MpiDeadUnitTest : public testing::TestWithParam<OpKind> {
 protected:
  void SetUp() override {
    if (identity_.size == 1) {
      GTEST_SKIP() << "one rank never waits";
    }
  }

  std::unique_ptr<Engine> create() const {
    EngineContext context;
    context.rank = identity_.rank;
    context.size = identity_.size;
    context.lanes = 2;
    return create_mpi_engine(context);
  }

  const MpiIdentity identity_ = mpi_initialize(0, 30);
};

/// The last rank leaves an operation out; within a node and between nodes alike. Afterwards MPI is
/// as good as new; a job that ended without a new engine would leave MPI as it is, and mpirun kills
/// the ranks that have not ended when the first one has.
TEST_P(MpiDeadUnitTest, AnOperationThatOneRankLeavesOutEnds) {
  const int rank = identity_.rank;
  const int size = identity_.size;
  configure_log(LogLevel::kFatal, -1);
  Listener listener("127.0.0.1");
  Connector connector(listener, mpi_all_gather(listener.address()), rank, {1, 2, 3}, 1, 30);
  TcpPlane plane(connector, 20, 50);
  {
    std::unique_ptr<Engine> engine = create();
    if (rank == size - 1) {
      engine = std::make_unique<Deserter>(std::move(engine));
    }
    Timeline timeline(rank);
    CoordinatorOptions options = CoordinatorWorld().options;
    options.unit_timeout_s = 1;
    options.parameters.unit_bytes = 1 << 20;
    Coordinator coordinator(plane, *engine, timeline, options);
    check_desertion(coordinator, GetParam(), rank, size, size - 1);
  }
  const std::unique_ptr<Engine> engine = create();
  check_all_reduce(*engine, 0, rank, size, 50001, DataType::kFloat32, ReduceOp::kSum);
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         MpiDeadUnitTest,
                         testing::Values(OpKind::kAllreduce, OpKind::kAlltoall),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace aiacc
