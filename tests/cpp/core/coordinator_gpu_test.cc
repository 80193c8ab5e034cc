// What is particular to tensors on GPUs over NCCL: launches, algorithms, and that no thread waits.
// Their results are in coordinator_random_test.cc.

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/core/execution/coded_steps.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {
namespace {

class CoordinatorGpuTest : public testing::TestWithParam<int> {
 protected:
  template <class Body>
  void with_gpus(Body body) {
    aiacc::with_gpus(gpus_, world_, lanes_, body);
  }
  int size() const { return GetParam(); }
  /// `step(coordinator, gpu, values)` submits; its sums are in the first value.
  template <class Step>
  void check_that_no_thread_waits(Step step);

  NcclWorld gpus_{GetParam()};
  CoordinatorWorld world_;
  int lanes_ = 2;
};

/// A launch costs a thread of NCCL's, so units of a round that are on different lanes share one.
TEST_P(CoordinatorGpuTest, UnitsOfAllLanesAreLaunchedTogether) {
  for (const int lanes : {1, 2, 4}) {
    lanes_ = lanes;
    world_.lanes = lanes;
    world_.options.parameters = {0, 1, static_cast<std::uint32_t>(lanes)};
    world_.options.parameters.gpu_unit_bytes = 102'400;
    constexpr int kUnits = 8;
    std::atomic<int> before{0};
    std::vector<std::vector<float>> memory(static_cast<std::size_t>(size()));
    with_gpus([&](int rank, RankParts& parts, Submitter& gpu) {
      float first = 0;
      gpu.finish(gpu.submit(make_request("connects", {1}), &first, &first));
      barrier(*parts.coordinator, "all have");
      if (rank == 0) {
        before = gpus_.nccl.launches();
      }
      barrier(*parts.coordinator, "counted");
      auto& values = memory[static_cast<std::size_t>(rank)];
      values.assign(25'600 * kUnits, 1.0F);
      gpu.finish(gpu.submit(make_request("x", {25'600 * kUnits}), values.data(), values.data()));
      EXPECT_EQ(std::vector<float>(values.size(), static_cast<float>(size())), values);
    });
    EXPECT_EQ(before + size() * kUnits / lanes, gpus_.nccl.launches()) << lanes << " lanes";
  }
}

/// AIACC_UNIT_BYTES does not count for them.
TEST_P(CoordinatorGpuTest, UnitsHaveASizeOfTheirOwn) {
  world_.options.parameters.unit_bytes = 1 << 20;
  with_gpus([&](int rank, RankParts& parts, Submitter& gpu) {
    std::vector<float> values(4096, 1.0F);
    const auto units_of = [&](const std::function<void()>& step) {
      const std::uint64_t before = parts.coordinator->stats().units;
      step();
      return parts.coordinator->stats().units - before;
    };
    const Request request = make_request("x", {4096});  // 16 KiB, 4 units
    const auto on_gpu = [&] { gpu.finish(gpu.submit(request, values.data(), values.data())); };
    EXPECT_EQ(4U, units_of(on_gpu));
    EXPECT_EQ(1U, units_of([&] {
                finish(*parts.coordinator,
                       submit(*parts.coordinator, request, values.data(), values.data()));
              }));
    barrier(*parts.coordinator, "before");
    if (rank == 0) {  // agreed on, as all parameters are
      Parameters parameters = world_.options.parameters;
      parameters.gpu_unit_bytes = 16 << 10;
      parts.coordinator->propose(parameters);
    }
    while (units_of(on_gpu) != 1) {
    }
    barrier(*parts.coordinator, "after");
  });
}

TEST_P(CoordinatorGpuTest, AnAlgorithmFromTheStartAndForAllUnitsOfAnEpoch) {
  world_.options.parameters.algorithm = Algorithm::kRing;
  with_gpus([&](int rank, RankParts& parts, Submitter& gpu) {
    std::vector<float> values(5000, 1.0F);  // several units
    gpu.finish(gpu.submit(make_request("x"), values));
    EXPECT_EQ(static_cast<float>(size()), values.back());
    barrier(*parts.coordinator, "all have");
    EXPECT_GE(gpus_.nccl.preferred("ring"), 2 * size());
    EXPECT_EQ(0, gpus_.nccl.preferred("tree"));
    barrier(*parts.coordinator, "looked");
    if (rank == 0) {
      Parameters parameters = world_.options.parameters;
      parameters.algorithm = Algorithm::kTree;
      parts.coordinator->propose(parameters);
    }
    while (gpus_.nccl.preferred("tree") < 10 * size()) {
      gpu.finish(gpu.submit(make_request("x"), values));
      barrier(*parts.coordinator, "after");
    }
  });
}

template <class Step>
void CoordinatorGpuTest::check_that_no_thread_waits(Step step) {
  std::vector<std::vector<float>> memory(static_cast<std::size_t>(size()));
  std::atomic<int> arrived{0};
  with_gpus([&](int rank, RankParts& parts, Submitter& gpu) {
    const auto meet = [&](int times) { await_all(arrived, times * size()); };
    std::vector<float>& values = memory[static_cast<std::size_t>(rank)];
    values.assign(400'000, 1.0F);
    for (int warm_up = 0; warm_up < 3; ++warm_up) {  // connects, and takes memory
      for (const Handle handle : step(*parts.coordinator, gpu, values)) {
        gpu.finish(handle);
      }
    }
    meet(1);
    const float before = values[0];
    gpus_.cuda.hold();
    const int calls = gpus_.cuda.synchronising_calls();
    meet(2);
    for (const Handle handle : step(*parts.coordinator, gpu, values)) {
      gpu.wait(handle);
    }
    EXPECT_EQ(before, values[0]) << "nothing has run";
    meet(3);
    EXPECT_EQ(calls, gpus_.cuda.synchronising_calls());
    meet(4);
    gpus_.cuda.release();
    gpu.settle();
    const float sum = before * static_cast<float>(size());
    EXPECT_NEAR(sum, values[0], 0.02 * sum);
  });
}

TEST_P(CoordinatorGpuTest, NoThreadWaitsForTheGpuOrWhatIsFoundInInputs) {
  for (const FiniteMode mode : {FiniteMode::kOff, FiniteMode::kRaise}) {
    world_.options.check_finite = mode;
    check_that_no_thread_waits([](Coordinator&, Submitter& gpu, std::vector<float>& values) {
      std::vector<Handle> handles;
      for (int i = 0; i < 10; ++i) {  // small ones are packed; the last one is cut
        const std::int64_t count = i < 9 ? 100 : 10'000;
        float* data = values.data() + i * 1000;
        handles.push_back(gpu.submit(make_request("w" + std::to_string(i), {count}), data, data));
      }
      return handles;
    });
  }
}

TEST_P(CoordinatorGpuTest, NoThreadWaitsForWhatIsCoded) {
  constexpr std::int64_t kCount = 50'000;  // several units
  world_.options.parameters.unit_bytes = world_.options.parameters.gpu_unit_bytes = 1024;
  check_that_no_thread_waits(
      [](Coordinator& coordinator, Submitter& gpu, std::vector<float>& values) {
        std::vector<Handle> handles;
        float* data = values.data();
        for (const Coding& coding :
             {Coding{WireFormat::kInt8Blocks, 256}, Coding{WireFormat::kLargest, 10'000}}) {
          for (const bool group : {false, true}) {
            Request request =
                make_request("t" + std::to_string(handles.size()), {group ? 300 : kCount});
            request.wire = coding.format;
            request.wire_detail = coding.detail;
            CodedTensors tensors = {{data, data, data + kCount}};
            if (group) {
              request.tensors.push_back({DataType::kFloat32, {300}});
              tensors.push_back({data + 300, data + 300, nullptr});
            }
            auto operation = gpu.operation(request, nullptr, nullptr);
            assign_coded(*operation, operation->request, tensors);
            handles.push_back(coordinator.submit(std::move(operation)));
            data += 2 * kCount;
          }
        }
        return handles;
      });
}

TEST_P(CoordinatorGpuTest, InputsAreAwaitedAndReadersWait) {
  with_gpus([&](int, RankParts&, Submitter& gpu) {
    std::vector<float> values(3000, 0.0F);
    std::vector<float> seen(3000, 0.0F);
    std::atomic<bool> written{false};
    // The tensor is written long after it is submitted; streams decide what comes first.
    std::atomic<bool> go{false};
    ASSERT_EQ(kCudaSuccess, gpus_.cuda.enqueue(gpu.stream(), [&] {
      yield_until([&] { return go.load(); });
      std::fill(values.begin(), values.end(), 3.0F);
      written.store(true);
    }));
    const Handle handle = gpu.submit(make_request("x", {3000}), values.data(), values.data());
    gpu.wait(handle);
    EXPECT_FALSE(written.load()) << "the wait returned when it was queued";
    ASSERT_EQ(kCudaSuccess, gpus_.cuda.enqueue(gpu.stream(), [&] { seen = values; }));
    go.store(true);
    gpu.settle();
    EXPECT_EQ(std::vector<float>(3000, 3.0F * static_cast<float>(size())), seen);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, CoordinatorGpuTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace aiacc
