// Tensors on GPUs that pass through the host. More of their results is in
// core/coordinator_random_test.cc, and what is coded in core/coordinator_coded_test.cc.

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/core/execution/gpu/staging_suite.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {
namespace {

class StagingTest : public StagingSuite {};

TEST_P(StagingTest, ReductionsAreThoseOfHostMemoryToTheLastBit) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    int number = 0;
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16}) {
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kProduct}) {
        for (const std::int64_t elements : {1, 1000, 30011}) {  // express lane, a unit, many
          Request request = make_request("r" + std::to_string(number++), {elements});
          request.tensors[0].dtype = dtype;
          request.op = op;
          request.prescale = 0.3;
          request.postscale = 1.7;
          expect_bits_of_host(*parts.coordinator, request, rank);
        }
      }
    }
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{1001}}) {
      Request request =
          make_request("s" + std::to_string(rows), OpKind::kReducescatter, {rows, 30});
      request.op = ReduceOp::kAverage;
      request.prescale = 0.3;
      expect_bits_of_host(*parts.coordinator, request, rank);
    }
    if (size() != 3) {  // it needs a power of two
      Request request = make_request("a", {777});
      request.op = ReduceOp::kAdasum;
      expect_bits_of_host(*parts.coordinator, request, rank);
    }
  });
}

TEST_P(StagingTest, ASteadyStateMakesNoSynchronisingCall) {
  std::vector<std::vector<float>> residuals(static_cast<std::size_t>(size()),
                                            std::vector<float>(30'011));
  check_steady_state([&](Coordinator& coordinator, int rank) {
    Request request = make_request("steady", {30'011});
    result_of(coordinator, request, rank, 0);
    request.name = "coded";
    request.wire = WireFormat::kLargest;
    request.wire_detail = 10'000;
    result_of(coordinator, request, rank, 0, residuals[static_cast<std::size_t>(rank)].data());
  });
}

TEST_P(StagingTest, ABrokenDeviceIsAnErrorAndNoHang) { check_broken_device(1000); }

INSTANTIATE_TEST_SUITE_P(Worlds,
                         StagingTest,
                         worlds({{Transport::kFake, {1, 2}}, {Transport::kTcp, {2, 3}}}),
                         setting_name);

/// As it is with rows that are too many for one buffer.
TEST(Staging, RowsAreGatheredAndExchangedInSeveralSteps) {
  constexpr std::int64_t kRows = 500;
  constexpr std::size_t kColumns = 2000;
  NcclWorld gpus(2);
  with_submitters(gpus, Place::kStaged, {}, 1, [&](int rank, RankParts& parts, Submitter& gpu) {
    for (const OpKind kind : {OpKind::kAllgather, OpKind::kAlltoall}) {
      const auto given = [kind](int from, int to) {
        const std::size_t rows = static_cast<std::size_t>(kRows + from);
        return std::vector<float>(
            rows * kColumns, static_cast<float>(kind == OpKind::kAllgather ? from : 2 * from + to));
      };
      std::vector<float> input = given(rank, 0);
      Request request = make_request("x", kind, {kRows + rank, kColumns});
      if (kind == OpKind::kAlltoall) {
        request.numbers.assign(2, kRows + rank);
        request.tensors[0].shape[0] *= 2;
        const std::vector<float> to_other = given(rank, 1);
        input.insert(input.end(), to_other.begin(), to_other.end());
      }
      std::vector<float> expected = given(0, rank);
      const std::vector<float> from_other = given(1, rank);
      expected.insert(expected.end(), from_other.begin(), from_other.end());
      const Handle handle = gpu.submit(request, input.data(), nullptr);
      const RawBytes got = gpu.gathered(*gpu.wait(handle));
      ASSERT_EQ(expected.size() * sizeof(float), got.size());
      EXPECT_EQ(0, std::memcmp(expected.data(), got.data(), got.size()));
      parts.coordinator->release(handle);
    }
  });
}

/// `wait` returns when the copies back are queued; whoever orders a stream after that reads
/// results.
TEST(Staging, WaitReturnsWhileTheGpuIsStillBusy) {
  NcclWorld gpus(2);
  CoordinatorWorld world;
  std::atomic<int> arrived{0};
  world.before = [&](int, int, std::size_t bytes) {
    if (bytes == 4000 && ++arrived == 2) {
      gpus.cuda.hold();  // the copies to the host are done, those back are still to come
    }
  };
  with_submitters(gpus, Place::kStaged, world, 1, [&](int, RankParts& parts, Submitter& gpu) {
    std::vector<float> tensor(1000, 1);
    const Handle handle = gpu.submit(make_request("held"), tensor);
    gpu.wait(handle);
    EXPECT_EQ(tensor.front(), 1);  // the GPU has done nothing since
    sum(*parts.coordinator, "both have waited", 1);
    gpus.cuda.release();
    gpu.finish(handle);
    EXPECT_EQ(tensor, std::vector<float>(1000, 2));
  });
}

/// What the framework has queued before a tensor may take long, and a caller looks after signals.
TEST(Staging, AWaitIsNotHeldByTheGpu) {
  NcclWorld gpus(2);
  CoordinatorWorld world;
  world.options.linger = std::chrono::hours(1);
  world.options.peer_timeout_s = 1;
  gpus.cuda.hold();
  with_submitters(gpus, Place::kStaged, world, 1, [&](int, RankParts& parts, Submitter& gpu) {
    std::vector<float> tensor(1000, 1);
    const Handle handle = gpu.submit(make_request("held"), tensor);
    parts.coordinator->wait(handle, [&] { gpus.cuda.release(); });
    gpu.finish(handle);  // the wait ends when the copies back are queued
    EXPECT_EQ(tensor, std::vector<float>(1000, 2));
  });
}

}  // namespace
}  // namespace aiacc
