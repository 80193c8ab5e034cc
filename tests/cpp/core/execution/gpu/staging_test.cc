#include "csrc/core/execution/gpu/staging.h"

#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/kernels/half.h"
#include "tests/cpp/core/execution/coded_steps.h"
#include "tests/cpp/support/coordinators.h"
#include "tests/cpp/support/fakes/fake_cuda.h"
#include "tests/cpp/support/other_capture.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {
namespace {

/// Everything that a rank puts into one operation and gets from it. The device memory of the fake
/// is host memory, so both ways use the same.
struct Case {
  Request request;
  std::vector<std::byte> input;
  std::vector<std::byte> output;
};

/// Coordinators that stage tensors on GPU 0, over a driver in software.
class StagingTest : public testing::TestWithParam<WorldSetting> {
 protected:
  StagingTest() {
    world_.size = GetParam().size;
    world_.transport = GetParam().transport;
    world_.options.staging = [this]() -> const CudaDriver& { return cuda_.driver(); };
  }
  ~StagingTest() override { EXPECT_EQ(cuda_.misuses(), 0); }

  int size() const { return world_.size; }

  /// Submits in host memory (device -1) or on the device; the bytes of the results.
  std::vector<std::byte> result_of(Coordinator& coordinator,
                                   Case work,
                                   int device,
                                   void* residual = nullptr);
  /// `coded_steps` of every rank.
  std::vector<CodedResults> coded(const Coding& coding, bool feedback, int device);

  FakeCuda cuda_;
  CoordinatorWorld world_;
};

std::vector<std::byte> StagingTest::result_of(Coordinator& coordinator,
                                              Case work,
                                              int device,
                                              void* residual) {
  const bool gathers =
      work.request.kind == OpKind::kAllgather || work.request.kind == OpKind::kAlltoall;
  work.request.device = device;
  work.request.name += device < 0 ? ".host" : ".gpu";
  auto submitted = coordinator.acquire();
  submitted->request = work.request;
  submitted->input = work.input.data();
  submitted->output = gathers ? nullptr : work.output.data();
  submitted->residual = residual;
  const Handle handle = coordinator.submit(std::move(submitted));
  const auto operation = coordinator.wait(handle);
  if (gathers && device < 0) {
    const RawBytes& gathered = operation->gathered;
    work.output.assign(reinterpret_cast<const std::byte*>(gathered.data()),
                       reinterpret_cast<const std::byte*>(gathered.data()) + gathered.size());
  } else if (gathers) {
    const auto& rows = operation->first_extents;
    const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    work.output.resize(static_cast<std::size_t>(total) * work.request.row_bytes());
    coordinator.device_path().copy_gathered(*operation, 0, work.output.data(), nullptr);
  } else if (device >= 0) {
    coordinator.device_path().order_after(*operation, nullptr);
  }
  coordinator.release(handle);
  if (device >= 0) {
    cuda_.drain();
  }
  return work.output;
}

/// Numbers whose sums are not exact: what is added in another order has other last bits.
Case make_case(Request request, int rank, std::size_t output_bytes) {
  Case work;
  work.request = std::move(request);
  const std::size_t count = work.request.elements();
  work.input.resize(work.request.bytes());
  work.output.resize(output_bytes);
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  std::uniform_real_distribution<float> distribution(-1, 1);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = distribution(random);
    std::byte* at = work.input.data() + i * size_of(work.request.dtype);
    if (work.request.dtype == DataType::kFloat32) {
      std::memcpy(at, &value, sizeof value);
    } else if (work.request.dtype == DataType::kFloat64) {
      const double wide = value;
      std::memcpy(at, &wide, sizeof wide);
    } else {
      const auto bits = static_cast<std::uint16_t>(0x3c00U + random() % 1000);
      std::memcpy(at, &bits, size_of(work.request.dtype) == 2 ? 2 : 1);
    }
  }
  return work;
}

TEST_P(StagingTest, ReductionsAreThoseOfHostMemoryToTheLastBit) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    int number = 0;
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16}) {
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kProduct}) {
        for (const std::int64_t elements : {1, 1000, 30011}) {  // express lane, a unit, many
          Request request = make_request("r" + std::to_string(number++), {elements});
          request.dtype = dtype;
          request.op = op;
          request.prescale = 0.3;
          request.postscale = 1.7;
          const std::size_t bytes = request.bytes();
          const Case work = make_case(std::move(request), rank, bytes);
          const auto expected = result_of(*parts.coordinator, work, -1);
          EXPECT_EQ(result_of(*parts.coordinator, work, 0), expected) << work.request.name;
        }
      }
    }
  });
}

TEST_P(StagingTest, SmallTensorsShareUnitsOnTheirWay) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int round = 0; round < 3; ++round) {
      std::vector<std::vector<float>> tensors(40);
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        tensors[i].assign(100 + i, static_cast<float>(rank + 1));
        Request request = make_request("t" + std::to_string(i), {static_cast<int>(100 + i)});
        request.device = 0;
        handles.push_back(submit(coordinator, request, tensors[i].data(), tensors[i].data()));
      }
      coordinator.flush();
      for (const Handle handle : handles) {
        const auto operation = coordinator.wait(handle);
        coordinator.device_path().order_after(*operation, nullptr);
        coordinator.release(handle);
      }
      cuda_.drain();
      for (const auto& tensor : tensors) {
        EXPECT_EQ(tensor.front(), static_cast<float>(size() * (size() + 1)) / 2);
        EXPECT_EQ(tensor.back(), tensor.front());
      }
    }
  });
}

std::vector<CodedResults> StagingTest::coded(const Coding& coding, bool feedback, int device) {
  std::vector<CodedResults> results(static_cast<std::size_t>(size()));
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const auto run = [&](Request request, const CodedTensors& tensors) {
      request.device = device;
      auto operation = coordinator.acquire();
      assign_coded(*operation, request, tensors);
      const Handle handle = coordinator.submit(std::move(operation));
      if (device >= 0) {
        coordinator.device_path().order_after(*coordinator.wait(handle), nullptr);
        cuda_.drain();
      }
      finish(coordinator, handle);
    };
    results[static_cast<std::size_t>(rank)] = coded_steps(rank, coding, feedback, 0, run);
  });
  return results;
}

/// With what they leave to chance, and what is left in residuals.
TEST_P(StagingTest, CodedSumsAreThoseOfHostMemoryToTheLastBit) {
  std::vector<Coding> codings = block_codings();
  for (const Coding& coding : largest_codings()) {
    codings.push_back(coding);
  }
  codings.push_back({WireFormat::kRandom, 50'000});
  for (const Coding& coding : codings) {
    for (const bool feedback : {false, true}) {
      EXPECT_TRUE(coded(coding, feedback, -1) == coded(coding, feedback, 0))
          << name_of(coding.format) << " " << coding.detail << (feedback ? ", feedback" : "");
    }
  }
}

TEST_P(StagingTest, AdasumIsThatOfHostMemory) {
  if (size() == 3) {
    GTEST_SKIP() << "needs a power of two";
  }
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Request request = make_request("a", {777});
    request.op = ReduceOp::kAdasum;
    const Case work = make_case(request, rank, request.bytes());
    const auto expected = result_of(*parts.coordinator, work, -1);
    EXPECT_EQ(result_of(*parts.coordinator, work, 0), expected);
  });
}

TEST_P(StagingTest, BroadcastComesFromTheRootAlone) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Request request = make_request("b", OpKind::kBroadcast, {30011});
    request.root = size() - 1;
    const Case work = make_case(request, rank, request.bytes());
    EXPECT_EQ(result_of(*parts.coordinator, work, 0),
              make_case(request, request.root, request.bytes()).input);
  });
}

/// Large enough for several steps.
TEST_P(StagingTest, RowsAreGatheredAndExchangedAsInHostMemory) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    for (const std::int64_t rows : {std::int64_t{0}, std::int64_t{3}, std::int64_t{500 + rank}}) {
      Request request = make_request(
          "g" + std::to_string(rows > 3 ? 4 : rows), OpKind::kAllgather, {rows + rank, 2000});
      Case work = make_case(request, rank, 0);
      EXPECT_EQ(result_of(*parts.coordinator, work, 0), result_of(*parts.coordinator, work, -1));

      request = make_request("x" + std::to_string(rows > 3 ? 4 : rows), OpKind::kAlltoall, {});
      for (int other = 0; other < size(); ++other) {
        request.numbers.push_back(rows + (rank + other) % 2);
      }
      request.shape = {
          std::accumulate(request.numbers.begin(), request.numbers.end(), std::int64_t{0}), 2000};
      work = make_case(request, rank, 0);
      EXPECT_EQ(result_of(*parts.coordinator, work, 0), result_of(*parts.coordinator, work, -1));
    }
  });
}

TEST_P(StagingTest, ReduceScatterIsThatOfHostMemoryToTheLastBit) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{1001}}) {
      Request request =
          make_request("s" + std::to_string(rows), OpKind::kReducescatter, {rows, 30});
      request.op = ReduceOp::kAverage;
      request.prescale = 0.3;
      const auto own = static_cast<std::size_t>(scattered_rows(rows, size(), rank));
      const Case work = make_case(request, rank, own * request.row_bytes());
      const auto expected = result_of(*parts.coordinator, work, -1);
      EXPECT_EQ(result_of(*parts.coordinator, work, 0), expected);
    }
  });
}

/// Memory comes with the first operations; later ones make no call that may wait for the GPU, on
/// any thread.
TEST_P(StagingTest, ASteadyStateMakesNoSynchronisingCall) {
  std::atomic<int> after_warm_up{0};
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    std::vector<float> residual(30011);
    for (int step = 0; step < 12; ++step) {
      Request request = make_request("steady", {30011});
      result_of(*parts.coordinator, make_case(request, rank, request.bytes()), 0);
      request = make_request("coded", {30011});
      request.wire = WireFormat::kLargest;
      request.wire_detail = 10'000;
      result_of(*parts.coordinator, make_case(request, rank, request.bytes()), 0, residual.data());
      if (step == 5 && rank == 0) {
        after_warm_up = cuda_.synchronising_calls();
      }
      sum(*parts.coordinator, "step", 1);  // nobody is ahead of rank 0
    }
    if (rank == 0) {
      EXPECT_EQ(cuda_.synchronising_calls(), after_warm_up);
    }
    sum(*parts.coordinator, "end", 1);
  });
}

TEST_P(StagingTest, ABrokenDeviceIsAnErrorAndNoHang) {
  std::atomic<int> here{0};
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    Request request = make_request("before", {1000});
    result_of(coordinator, make_case(request, rank, request.bytes()), 0);
    sum(coordinator, "everybody is here", 1);
    await_all(here, world_.size);  // the first would end the sum of the others
    cuda_.break_with(700);
    const Status status = status_of([&] {
      request.name = "after";
      result_of(coordinator, make_case(request, rank, request.bytes()), 0);
    });
    EXPECT_FALSE(status.ok());
  });
}

TEST_P(StagingTest, WhatAnotherThreadCapturesIsNotSpoilt) {
  const OtherCapture capture(cuda_);
  with_coordinators(world_, [&](int, RankParts& parts) {
    for (int step = 0; step < 5; ++step) {
      const Request request = make_request("x", {30011});
      Case work;
      work.request = request;
      work.input.resize(request.bytes());
      work.output.resize(request.bytes(), std::byte{1});
      EXPECT_EQ(work.input, result_of(*parts.coordinator, work, 0));
    }
  });
  EXPECT_EQ("", capture.spoilt_by());
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         StagingTest,
                         testing::Values(WorldSetting{1, Transport::kInProcess},
                                         WorldSetting{2, Transport::kInProcess},
                                         WorldSetting{2, Transport::kTcp},
                                         WorldSetting{3, Transport::kTcp}),
                         setting_name);

/// `wait` returns when the copies back are queued; whoever orders a stream after that reads
/// results.
TEST(Staging, WaitReturnsWhileTheGpuIsStillBusy) {
  FakeCuda cuda;
  CoordinatorWorld world;
  world.size = 2;
  world.options.staging = [&]() -> const CudaDriver& { return cuda.driver(); };
  std::atomic<int> arrived{0};
  world.before = [&](int, int, std::size_t bytes) {
    if (bytes == 4000 && ++arrived == 2) {
      cuda.hold();  // the copies to the host are done, those back are still to come
    }
  };
  with_coordinators(world, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::vector<float> tensor(1000, 1);
    Request request = make_request("held", {1000});
    request.device = 0;
    const Handle handle = submit(coordinator, request, tensor.data(), tensor.data());
    const auto operation = coordinator.wait(handle);
    coordinator.device_path().order_after(*operation, nullptr);
    EXPECT_EQ(tensor.front(), 1);  // the GPU has done nothing since
    sum(coordinator, "both have waited", 1);
    cuda.release();
    cuda.drain();
    EXPECT_EQ(tensor, std::vector<float>(1000, 2));
    coordinator.release(handle);
  });
}

}  // namespace
}  // namespace aiacc
