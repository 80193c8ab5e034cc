// MPI between hosts for tensors on GPUs, which are in software here. Part of mpi_engine_test, which
// says how to run it.

#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/members.h"
#include "csrc/engines/staged/host_staged_engine.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/mpi/mpi_job.h"
#include "tests/cpp/support/nccl_world.h"

namespace aiacc {
namespace {

constexpr int kLanes = 2;
constexpr std::uint32_t kSplitId = std::uint32_t{1} << 31;  // as AIACC_GPU_ENGINE has it

/// Engine hierarchical-mpi between hosts of one rank each. That for host memory works beside it.
TEST(MpiStagedTest, WorksBesideTheEngineForHostMemory) {
  MpiJob job;
  const int rank = job.rank();
  const int size = job.size();
  const EngineContext context = job.context(3);
  const std::unique_ptr<Engine> host = create_mpi_engine(context);
  NcclWorld gpu(1);
  HostStagedEngine staged(create_mpi_engine(context, all_ranks(size), kSplitId, Cancellation{}),
                          gpu.engine(0, kLanes)->split({0}, 0),
                          rank,
                          size);
  const auto device = staged.device(0);
  std::thread beside([&] {
    for (int i = 0; i < 20; ++i) {
      check_all_reduce(*host, 0, rank, size, 20'000, DataType::kFloat32, ReduceOp::kSum);
    }
  });
  {
    const Device::Scope scope(*device);
    FinishingEngine finishing(staged, rank);
    for (int lane = 0; lane <= kLanes; ++lane) {  // also the express lane
      check_every_operation(finishing, lane, rank, size);
      for (const std::size_t count : {1, 1001, 200'000}) {
        check_all_reduce(finishing, lane, rank, size, count, DataType::kFloat32, ReduceOp::kSum);
      }
    }
    const std::unique_ptr<DeviceEngine> part = staged.split(all_ranks(size), kSplitId + 1);
    FinishingEngine in_part(*part, rank);
    check_every_operation(in_part, 0, rank, size);
  }
  beside.join();
  EXPECT_EQ(0, gpu.cuda.misuses());
}

/// As where rank 0 waits for the others, and one of them fails before: what MPI still has of that
/// must not meet the next job, which has no other engine of MPI that would tell them apart.
TEST(MpiStagedTest, WorksAfterRanksThatDidNotMeet) {
  MpiJob job;
  if (job.size() == 1) {
    GTEST_SKIP() << "one rank meets nobody";
  }
  const EngineContext context = job.context(1);
  const std::vector<int> all = all_ranks(job.size());
  for (int round = 0; round < 2; ++round) {
    if (job.rank() == 0) {
      Cancellation over;
      over.set({Code::kShutdown, "over"});
      EXPECT_THROW(create_mpi_engine(context, all, kSplitId, over), Error);
    }
    mpi_reserve(0);
    const auto engine = create_mpi_engine(context, all, kSplitId, Cancellation{});
    check_all_reduce(*engine, 0, job.rank(), job.size(), 1001, DataType::kFloat32, ReduceOp::kSum);
  }
}

}  // namespace
}  // namespace aiacc
