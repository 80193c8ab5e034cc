// All-reduces of tensors on GPUs that travel coded over NCCL.

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/core/execution/coded_steps.h"
#include "tests/cpp/support/gpu_ranks.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {
namespace {

class CoordinatorGpuCodedTest : public testing::TestWithParam<int> {
 protected:
  CoordinatorGpuCodedTest() {
    world_.size = size();
    world_.transport = Transport::kTcp;
  }
  int size() const { return GetParam(); }

  /// `coded_steps` of every rank, in host memory; of those of a process set, if it has a number.
  std::vector<CodedResults> on_host(const Coding& coding, bool feedback, bool of_some);
  /// The same on GPUs.
  std::vector<CodedResults> on_gpus(const Coding& coding, bool feedback, bool of_some);
  void expect_bits_of_host(const Coding& coding, bool of_some = false);
  /// All ranks but the first one, if there are so many.
  std::vector<int> some() const {
    std::vector<int> ranks;
    for (int rank = size() == 1 ? 0 : 1; rank < size(); ++rank) {
      ranks.push_back(rank);
    }
    return ranks;
  }
  /// Runs `steps(set)` on the members of a set.
  template <class Steps>
  void with_set(int rank, Coordinator& coordinator, bool of_some, Steps steps) {
    const bool all = !of_some || size() == 1;
    const std::uint32_t set = all ? 0 : coordinator.add_process_set(some());
    if (all || index_in(some(), rank) >= 0) {
      steps(set);
    }
    barrier(coordinator, "all have");
  }

  NcclWorld gpus_{GetParam()};
  CoordinatorWorld world_;
  int lanes_ = 2;
};

std::vector<CodedResults> CoordinatorGpuCodedTest::on_host(const Coding& coding,
                                                           bool feedback,
                                                           bool of_some) {
  std::vector<CodedResults> results(static_cast<std::size_t>(size()));
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    with_set(rank, coordinator, of_some, [&](std::uint32_t set) {
      results[static_cast<std::size_t>(rank)] = coded_steps(
          rank, coding, feedback, set, [&](const Request& request, const CodedTensors& tensors) {
            auto operation = coordinator.acquire();
            assign_coded(*operation, request, tensors);
            finish(coordinator, coordinator.submit(std::move(operation)));
          });
    });
  });
  return results;
}

std::vector<CodedResults> CoordinatorGpuCodedTest::on_gpus(const Coding& coding,
                                                           bool feedback,
                                                           bool of_some) {
  std::vector<CodedResults> results(static_cast<std::size_t>(size()));
  with_gpus(gpus_, world_, lanes_, [&](int rank, RankParts& parts, GpuRank& gpu) {
    Coordinator& coordinator = *parts.coordinator;
    with_set(rank, coordinator, of_some, [&](std::uint32_t set) {
      results[static_cast<std::size_t>(rank)] = coded_steps(
          rank, coding, feedback, set, [&](const Request& request, const CodedTensors& tensors) {
            auto operation = gpu.operation(request, nullptr, nullptr);
            assign_coded(*operation, operation->request, tensors);
            gpu.finish(coordinator.submit(std::move(operation)));
          });
    });
  });
  return results;
}

void CoordinatorGpuCodedTest::expect_bits_of_host(const Coding& coding, bool of_some) {
  for (const bool feedback : {false, true}) {
    EXPECT_TRUE(on_host(coding, feedback, of_some) == on_gpus(coding, feedback, of_some))
        << name_of(coding.format) << " " << coding.detail << (feedback ? ", feedback" : "");
  }
}

TEST_P(CoordinatorGpuCodedTest, BlocksHaveTheBitsOfHostMemory) {
  for (const Coding& coding : block_codings()) {
    expect_bits_of_host(coding);
  }
}

TEST_P(CoordinatorGpuCodedTest, TheLargestHaveTheBitsOfHostMemory) {
  for (const Coding& coding : largest_codings()) {
    expect_bits_of_host(coding);
  }
}

TEST_P(CoordinatorGpuCodedTest, ProcessSetsHaveTheBitsOfHostMemory) {
  expect_bits_of_host({WireFormat::kInt8Blocks, 128 + Coding::kStochastic}, true);
  expect_bits_of_host({WireFormat::kLargest, 10'000}, true);
}

/// Their operations are issued together, those of the lanes of a round.
TEST_P(CoordinatorGpuCodedTest, AnyNumberOfLanes) {
  for (const int lanes : {1, 4}) {
    lanes_ = lanes;
    world_.lanes = lanes;
    world_.options.parameters.lanes = static_cast<std::uint32_t>(lanes);
    expect_bits_of_host({WireFormat::kInt4Blocks, 256});
    expect_bits_of_host({WireFormat::kLargest, 10'000});
  }
}

/// With inputs that are looked at, and beside units that are not coded.
TEST_P(CoordinatorGpuCodedTest, InputsAreLookedAt) {
  world_.options.check_finite = FiniteMode::kRaise;
  expect_bits_of_host({WireFormat::kInt8Blocks, 256});
  expect_bits_of_host({WireFormat::kLargest, 10'000});
}

TEST_P(CoordinatorGpuCodedTest, NoThreadWaitsForTheGpu) {
  constexpr std::int64_t kCount = 50'000;  // several units
  const std::vector<Coding> codings = {{WireFormat::kInt8Blocks, 256},
                                       {WireFormat::kLargest, 10'000}};
  std::vector<std::vector<float>> memory(static_cast<std::size_t>(size()));
  std::atomic<int> arrived{0};
  world_.options.parameters.unit_bytes = world_.options.parameters.gpu_unit_bytes = 1024;
  with_gpus(gpus_, world_, lanes_, [&](int rank, RankParts& parts, GpuRank& gpu) {
    const auto meet = [&](int times) { await_all(arrived, times * size()); };
    std::vector<float>& values = memory[static_cast<std::size_t>(rank)];
    values.assign(8 * kCount, 1.0F);
    const auto step = [&] {
      std::vector<Handle> handles;
      float* data = values.data();
      for (std::size_t i = 0; i < codings.size(); ++i) {
        for (const bool group : {false, true}) {
          Request request =
              make_request((group ? "g" : "t") + std::to_string(i), {group ? 300 : kCount});
          request.wire = codings[i].format;
          request.wire_detail = codings[i].detail;
          CodedTensors tensors = {{data, data, data + kCount}};
          if (group) {
            request.more.push_back({DataType::kFloat32, {300}});
            tensors.push_back({data + 300, data + 300, nullptr});
          }
          auto operation = gpu.operation(request, nullptr, nullptr);
          assign_coded(*operation, operation->request, tensors);
          handles.push_back(parts.coordinator->submit(std::move(operation)));
          data += 2 * kCount;
        }
      }
      return handles;
    };
    for (int warm_up = 0; warm_up < 3; ++warm_up) {  // connects, and takes memory
      for (const Handle handle : step()) {
        gpu.finish(handle);
      }
    }
    meet(1);
    const float before = values[0];
    gpus_.cuda.hold();
    const int calls = gpus_.cuda.synchronising_calls();
    meet(2);
    for (const Handle handle : step()) {
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

/// It has no residuals of them.
TEST_P(CoordinatorGpuCodedTest, WhileARankHasJoinedNothingIsCoded) {
  with_gpus(gpus_, world_, lanes_, [&](int rank, RankParts& parts, GpuRank& gpu) {
    for (const Coding& coding :
         {Coding{WireFormat::kInt8Blocks, 256}, Coding{WireFormat::kLargest, 10'000}}) {
      std::vector<float> values(700);
      std::vector<float> residual(700, 0.5F);
      Request request = make_request("x", {700});
      request.wire = coding.format;
      request.wire_detail = coding.detail;
      for (int step = 0; rank != 0 && step < 3; ++step) {  // as a request, then by a bit
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(i);
        }
        auto operation = gpu.operation(request, nullptr, nullptr);
        assign_coded(
            *operation, operation->request, {{values.data(), values.data(), residual.data()}});
        gpu.finish(parts.coordinator->submit(std::move(operation)));
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(static_cast<float>((size() - 1)) * static_cast<float>(i), values[i]);
        }
      }
      EXPECT_EQ(std::vector<float>(700, 0.5F), residual);
      finish(*parts.coordinator,
             submit(*parts.coordinator, make_request("", OpKind::kJoin, {}), nullptr, nullptr));
    }
  });
}

TEST_P(CoordinatorGpuCodedTest, WhatTheEngineCannotCodeIsRefusedWhereItIsSubmitted) {
  with_gpus(gpus_, world_, lanes_, [&](int, RankParts&, GpuRank& gpu) {
    float value = 1;
    Request request = make_request("x", {1});
    request.wire = WireFormat::kRandom;
    request.wire_detail = 10'000;
    const Status status = status_of([&] { gpu.submit(request, &value, &value); });
    EXPECT_EQ(Code::kUnsupported, status.code());
    EXPECT_NE(std::string::npos,
              status.message().find("wire format random (expected blocks, the largest elements, or "
                                    "a format of 8 to 32 bits); use mstopk, or set "
                                    "AIACC_GPU_ENGINE=staged for it"))
        << status.message();
    request.wire = WireFormat::kTensor;
    request.wire_detail = 0;
    gpu.finish(gpu.submit(request, &value, &value));
    EXPECT_EQ(static_cast<float>(size()), value);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, CoordinatorGpuCodedTest, testing::Values(1, 2, 3));

}  // namespace
}  // namespace aiacc
