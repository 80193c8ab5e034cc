// Ranks of an MPI job that disagree about what they have agreed on. Part of mpi_engine_test, which
// says how to run it.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/control/tcp/connector.h"
#include "csrc/control/tcp/tcp_plane.h"
#include "csrc/engines/mpi/mpi_loader.h"
#include "tests/cpp/support/deserter.h"
#include "tests/cpp/support/desertion.h"

namespace aiacc {
namespace {

class MpiDeadUnitTest : public testing::TestWithParam<OpKind> {};

/// The last rank leaves an operation out; within a node and between nodes alike.
TEST_P(MpiDeadUnitTest, AnOperationThatOneRankLeavesOutEnds) {
  const MpiIdentity identity = mpi_initialize(0, 30);
  const int rank = identity.rank;
  const int size = identity.size;
  if (size == 1) {
    GTEST_SKIP() << "one rank never waits";
  }
  configure_log(LogLevel::kFatal, -1);
  Listener listener("127.0.0.1");
  Connector connector(listener, mpi_all_gather(listener.address()), rank, {1, 2, 3}, 1, 30);
  TcpPlane plane(connector, 20, 50);
  EngineContext context;
  context.rank = rank;
  context.size = size;
  context.lanes = 2;
  std::unique_ptr<Engine> engine = create_mpi_engine(context);
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

INSTANTIATE_TEST_SUITE_P(Kinds,
                         MpiDeadUnitTest,
                         testing::Values(OpKind::kAllreduce,
                                         OpKind::kAllgather,
                                         OpKind::kAlltoall,
                                         OpKind::kReducescatter),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace aiacc
