// MPI between hosts for tensors on GPUs, which are in software here. Part of mpi_engine_test, which
// says how to run it.

#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/members.h"
#include "csrc/engines/mpi/mpi_loader.h"
#include "csrc/engines/staged/host_staged_engine.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/support/nccl_world.h"

namespace aiacc {
namespace {

constexpr int kLanes = 2;
constexpr std::uint32_t kSplitId = std::uint32_t{1} << 31;  // as AIACC_GPU_ENGINE has it

/// Engine hierarchical-mpi between hosts of one rank each. That for host memory works beside it.
TEST(MpiStagedTest, WorksBesideTheEngineForHostMemory) {
  const MpiIdentity identity = mpi_initialize(0, 30);
  EngineContext context;
  context.rank = identity.rank;
  context.size = identity.size;
  context.lanes = 3;
  const std::unique_ptr<Engine> host = create_mpi_engine(context);
  NcclWorld gpu(1);
  HostStagedEngine staged(
      create_mpi_engine(context, all_ranks(identity.size), kSplitId, Cancellation{}),
      gpu.engine(0, kLanes)->split({0}, 0),
      identity.rank,
      identity.size);
  const auto device = staged.device(0);
  std::thread beside([&] {
    for (int i = 0; i < 20; ++i) {
      check_all_reduce(
          *host, 0, identity.rank, identity.size, 20'000, DataType::kFloat32, ReduceOp::kSum);
    }
  });
  {
    const Device::Scope scope(*device);
    FinishingEngine finishing(staged, identity.rank);
    for (int lane = 0; lane <= kLanes; ++lane) {  // also the express lane
      check_every_operation(finishing, lane, identity.rank, identity.size);
      for (const std::size_t count : {1, 1001, 200'000}) {
        check_all_reduce(finishing,
                         lane,
                         identity.rank,
                         identity.size,
                         count,
                         DataType::kFloat32,
                         ReduceOp::kSum);
      }
    }
    const std::unique_ptr<DeviceEngine> part = staged.split(all_ranks(identity.size), kSplitId + 1);
    FinishingEngine in_part(*part, identity.rank);
    check_every_operation(in_part, 0, identity.rank, identity.size);
  }
  beside.join();
  EXPECT_EQ(0, gpu.cuda.misuses());
}

/// As where rank 0 waits for the others, and one of them fails before: what MPI still has of that
/// must not meet the next job, which has no other engine of MPI that would tell them apart.
TEST(MpiStagedTest, WorksAfterRanksThatDidNotMeet) {
  const MpiIdentity identity = mpi_initialize(0, 30);
  if (identity.size == 1) {
    GTEST_SKIP() << "one rank meets nobody";
  }
  EngineContext context;
  context.rank = identity.rank;
  context.size = identity.size;
  context.lanes = 1;
  const std::vector<int> all = all_ranks(identity.size);
  for (int job = 0; job < 2; ++job) {
    if (identity.rank == 0) {
      Cancellation over;
      over.set({Code::kShutdown, "over"});
      EXPECT_THROW(create_mpi_engine(context, all, kSplitId, over), Error);
    }
    mpi_reserve(0);
    const auto engine = create_mpi_engine(context, all, kSplitId, Cancellation{});
    check_all_reduce(
        *engine, 0, identity.rank, identity.size, 1001, DataType::kFloat32, ReduceOp::kSum);
  }
}

}  // namespace
}  // namespace aiacc
