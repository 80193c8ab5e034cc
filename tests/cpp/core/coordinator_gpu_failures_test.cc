#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/gpu_ranks.h"
#include "tests/cpp/support/other_capture.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The error with which the job ends. Every rank waits for something of its own.
Status fatal_status(Coordinator& coordinator, const std::string& name) {
  Status status;
  while (status.ok()) {
    float value = 1;
    status = status_of(
        [&] { finish(coordinator, submit(coordinator, make_request(name, {1}), &value, &value)); });
  }
  return status;
}

TEST(CoordinatorGpuFailures, OnGpuAndOnCpuFailsOnAllRanksAndTheJobGoesOn) {
  NcclWorld gpus(3);
  with_gpus(gpus, {}, 2, [&](int rank, RankParts& parts, GpuRank& gpu) {
    for (int i = 0; i < 3; ++i) {
      float value = 1;
      const Request request = make_request("w", {1});
      const Status status = status_of([&] {
        const Handle handle = rank == 1 ? gpu.submit(request, &value, &value)
                                        : submit(*parts.coordinator, request, &value, &value);
        parts.coordinator->wait(handle);
      });
      EXPECT_EQ(Code::kMismatch, status.code());
      EXPECT_TRUE(contains(status.message(),
                           "rank 0 submitted device cpu, rank 1 submitted device "
                           "gpu 1; all ranks must agree on it"))
          << status.message();
      EXPECT_EQ(1.0F, value);
      // The same name, each way.
      gpu.finish(gpu.submit(request, &value, &value));
      EXPECT_EQ(3.0F, value);
      EXPECT_EQ(3.0F, sum(*parts.coordinator, "w", 1));
    }
  });
}

TEST(CoordinatorGpuFailures, TensorsOfBothKindsInOneStep) {
  NcclWorld gpus(2);
  with_gpus(gpus, {}, 2, [&](int, RankParts& parts, GpuRank& gpu) {
    for (int step = 0; step < 5; ++step) {
      std::vector<float> values(8, 1.0F);
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const Request request = make_request("w" + std::to_string(i), {1});
        handles.push_back(i % 2 == 0 ? gpu.submit(request, &values[i], &values[i])
                                     : submit(*parts.coordinator, request, &values[i], &values[i]));
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i % 2 == 0) {
          gpu.finish(handles[i]);
        } else {
          finish(*parts.coordinator, handles[i]);
        }
        EXPECT_EQ(2.0F, values[i]);
      }
    }
  });
}

TEST(CoordinatorGpuFailures, RefusedWhereItIsSubmitted) {
  NcclWorld gpus(1);
  FakeCuda& cuda = gpus.cuda;
  with_gpus(gpus, {}, 1, [&](int, RankParts& parts, GpuRank& gpu) {
    float value = 1;
    const auto refusal = [&](const Request& request, int device) {
      auto operation = gpu.operation(request, &value, &value);
      operation->request.device = device;
      return status_of([&] { parts.coordinator->submit(std::move(operation)); });
    };
    gpu.finish(gpu.submit(make_request("x", {1}), &value, &value));
    Request request = make_request("x", {1});
    request.op = ReduceOp::kAdasum;
    EXPECT_EQ(Code::kUnsupported, refusal(request, 0).code());
    request = make_request("x", {1});
    request.dtype = DataType::kInt16;
    Status status = refusal(request, 0);
    EXPECT_EQ(Code::kUnsupported, status.code());
    EXPECT_TRUE(contains(status.message(), "int16 (expected")) << status.message();
    request = make_request("x", {1});
    request.wire = WireFormat::kBFloat16;
    request.dtype = DataType::kFloat64;
    status = refusal(request, 0);
    EXPECT_EQ(Code::kInvalidArgument, status.code());
    EXPECT_TRUE(contains(status.message(), "bfloat16 for float64 (expected float32)"));
    request.dtype = DataType::kFloat32;
    request.wire = WireFormat::kFloat8E4M3;
    status = refusal(request, -1);
    EXPECT_EQ(Code::kInvalidArgument, status.code());
    EXPECT_TRUE(contains(status.message(), "float8_e4m3 in host memory (expected float16"));
    cuda.set_capturing(gpu.stream(), true);
    status = refusal(make_request("x", {1}), 0);
    EXPECT_EQ(Code::kUnsupported, status.code());
    EXPECT_TRUE(contains(status.message(), "torch.cuda.graph")) << status.message();
    cuda.set_capturing(gpu.stream(), false);

    const Handle handle = gpu.submit(make_request("x", {1}), &value, &value);
    const auto operation = parts.coordinator->wait(handle);
    cuda.set_capturing(gpu.stream(), true);
    status =
        status_of([&] { parts.coordinator->device_path().order_after(*operation, gpu.stream()); });
    EXPECT_EQ(Code::kUnsupported, status.code());
    cuda.set_capturing(gpu.stream(), false);
    gpu.finish(handle);
  });
}

/// It goes on nevertheless: the others are told whom they wait for, and for what.
TEST(CoordinatorGpuFailures, WhatIsRefusedOnOneRankIsAStallOnTheOthers) {
  for (const bool captures : {false, true}) {
    NcclWorld gpus(2);
    CoordinatorWorld world;
    world.options.stall_fail_s = 0.1;
    std::promise<void> told;
    with_gpus(gpus, world, 2, [&](int rank, RankParts& parts, GpuRank& gpu) {
      float value = 1;
      if (rank == 1) {
        auto operation = gpu.operation(make_request("x", {1}), &value, &value);
        operation->request.device = captures ? 1 : 7;
        gpus.cuda.set_capturing(gpu.stream(), captures);
        const Status status = status_of([&] { parts.coordinator->submit(std::move(operation)); });
        gpus.cuda.set_capturing(gpu.stream(), false);
        EXPECT_FALSE(status.ok());
        EXPECT_TRUE(contains(status.message(), captures ? "torch.cuda.graph" : "7"))
            << status.message();
        told.get_future().wait();
        return;
      }
      const Status status =
          status_of([&] { gpu.finish(gpu.submit(make_request("x", {1}), &value, &value)); });
      told.set_value();
      EXPECT_EQ(Code::kTimeout, status.code());
      EXPECT_TRUE(contains(status.message(), "tensor 'x' has waited")) << status.message();
      EXPECT_TRUE(contains(status.message(), "for rank(s) 1; rank(s) 0 have submitted it"))
          << status.message();
    });
  }
}

/// From the first operation, which opens and loads everything, to the end of the job.
TEST(CoordinatorGpuFailures, WhatAnotherThreadCapturesIsNotSpoilt) {
  for (const FiniteMode mode : {FiniteMode::kOff, FiniteMode::kRaise}) {
    NcclWorld gpus(2);
    const OtherCapture capture(gpus.cuda);
    CoordinatorWorld world;
    world.options.check_finite = mode;
    world.options.stall_warn_s = 0.01;  // looks after the GPU all the time
    with_gpus(gpus, world, 2, [&](int rank, RankParts& parts, GpuRank& gpu) {
      for (int step = 0; step < 5; ++step) {
        std::vector<float> values(3000, 1.0F);
        gpu.wait(gpu.submit(make_request("x", {3000}), values.data(), values.data()));
        const Handle handle =
            gpu.submit(make_request("g", OpKind::kAllgather, {rank + 1}), values.data(), nullptr);
        const auto operation = gpu.wait(handle);
        std::vector<float> all(3);
        parts.coordinator->device_path().copy_gathered(*operation, 0, all.data(), gpu.stream());
        gpus.cuda.drain();
        EXPECT_EQ(2.0F, values.front());
        EXPECT_EQ(std::vector<float>(3, 2.0F), all);
      }
    });
    EXPECT_EQ("", capture.spoilt_by());
  }
}

/// Loading kernels can take many seconds, and the peers' patience is not so long.
TEST(CoordinatorGpuFailures, TheJobGoesOnWhileKernelsAreLoaded) {
  NcclWorld gpus(2);
  gpus.cuda.begin_loading();
  CoordinatorWorld world;
  world.options.stall_warn_s = 0.002;  // whoever drives looks after the GPU all the time
  std::atomic<int> through{0};
  with_gpus(gpus, world, 2, [&](int, RankParts& parts, GpuRank& gpu) {
    float value = 1;
    const Handle handle = gpu.submit(make_request("x", {1}), &value, &value);
    // Agreed on, and the launching threads of both ranks are loading.
    while (gpus.cuda.loading() < 2) {
      EXPECT_FALSE(parts.coordinator->poll(handle));
      std::this_thread::yield();
    }
    for (int i = 0; i < 300; ++i) {
      EXPECT_EQ(2.0F, sum(*parts.coordinator, "in host memory", 1));
    }
    if (++through == 2) {
      gpus.cuda.end_loading();
    }
    gpu.finish(handle);
    EXPECT_EQ(2.0F, value);
  });
}

/// The others have submitted, too, and would wait for this rank for ever.
TEST(CoordinatorGpuFailures, AGpuThatCannotBeOpenedIsAnErrorOnAllRanks) {
  NcclWorld gpus(3);
  std::atomic<int> arrived{0};
  with_gpus(gpus, {}, 2, [&](int rank, RankParts& parts, GpuRank& gpu) {
    await_all(arrived, 3);
    gpus.cuda.refuse_to_open(1);
    await_all(arrived, 6);
    float value = 1;
    const Status status = status_of([&] {
      const Handle handle = gpu.submit(make_request("x", {1}), &value, &value);
      parts.coordinator->wait(handle);
    });
    EXPECT_EQ(Code::kEngine, status.code()) << rank;
    EXPECT_TRUE(contains(status.message(), "rank 1, GPU 1: [cuda] primary_context_retain failed"))
        << status.message();
  });
}

TEST(CoordinatorGpuFailures, AGpuThatIsNotThere) {
  NcclWorld gpus(2);
  with_gpus(gpus, {}, 1, [&](int, RankParts& parts, GpuRank& gpu) {
    float value = 1;
    auto operation = gpu.operation(make_request("x", {1}), &value, &value);
    operation->request.device = 2;
    const Status status = status_of([&] { parts.coordinator->submit(operation); });
    EXPECT_EQ(Code::kInvalidArgument, status.code());
    EXPECT_TRUE(contains(status.message(), "device 2 (expected 0..1")) << status.message();
    gpu.finish(gpu.submit(make_request("x", {1}), &value, &value));
    EXPECT_EQ(2, value);
  });
}

/// The other ranks would wait for one that cannot even stage.
TEST(CoordinatorGpuFailures, ARankWithoutADriverEndsAll) {
  CoordinatorWorld world;
  world.options.staging = []() -> const CudaDriver& {
    throw Error(Code::kEngine, "no driver; install it");
  };
  with_coordinators(world, [&](int rank, RankParts& parts) {
    float value = 1;
    Request request = make_request("x", {1});
    request.device = 0;
    const auto use = [&] { submit(*parts.coordinator, request, &value, &value); };
    const Status status = rank == 0 ? status_of(use) : fatal_status(*parts.coordinator, "y");
    EXPECT_EQ(Code::kEngine, status.code());
    EXPECT_TRUE(contains(status.message(), "rank 0, GPU 0: no driver")) << status.message();
  });
}

TEST(CoordinatorGpuFailures, ALostRankEndsAll) {
  NcclWorld gpus(3);
  std::atomic<int> told{0};
  const auto body = [&](int rank, RankParts& parts, GpuRank& gpu) {
    std::vector<float> value(2000, 1.0F);
    const Request request = make_request("x", {2000});
    gpu.finish(gpu.submit(request, value.data(), value.data()));
    if (rank == 2) {
      parts.gpu->abort({Code::kEngine, "a fault"});
    }
    const Handle handle = gpu.submit(request, value.data(), value.data());
    // It may be queued on the others, where it waits for rank 2 on the GPU.
    const Status queued = status_of([&] { gpu.wait(handle); });
    EXPECT_TRUE(queued.ok() || queued.message() == "a fault") << queued.message();
    const Status fatal = fatal_status(*parts.coordinator, "alone on " + std::to_string(rank));
    EXPECT_EQ("a fault", fatal.message());
    gpu.settle();  // nothing is left on the GPU
    await_all(told, 3);
    throw Error(fatal);
  };
  EXPECT_THROW(with_gpus(gpus, {}, 2, body), Error);
  EXPECT_EQ(3, told.load());
}

TEST(CoordinatorGpuFailures, AFailureOfTheGpuIsNoticedWithoutACall) {
  for (const bool of_nccl : {true, false}) {
    NcclWorld gpus(1);
    CoordinatorWorld world;
    world.options.peer_timeout_s = 0.05;  // how often it looks follows from that
    with_gpus(gpus, world, 1, [&](int, RankParts& parts, GpuRank& gpu) {
      std::vector<float> value(2000, 1.0F);
      const Handle first = gpu.submit(make_request("x", {2000}), value.data(), value.data());
      gpu.finish(first);
      gpus.cuda.hold();
      gpu.wait(gpu.submit(make_request("x", {2000}), value.data(), value.data()));
      // All calls are over, and it goes on to look.
      for (const int before = gpus.nccl.questions(); gpus.nccl.questions() < before + 20;) {
        std::this_thread::yield();
      }
      if (of_nccl) {
        gpus.nccl.break_all_with(kNcclInternalError);
      } else {
        gpus.cuda.break_with(700);
      }
      while (gpus.nccl.communicators() > 0) {  // until they are aborted
        std::this_thread::yield();
      }
      const Status status = fatal_status(*parts.coordinator, "later");
      EXPECT_EQ(Code::kEngine, status.code());
      EXPECT_TRUE(contains(status.message(), of_nccl ? "[nccl]" : "[cuda]")) << status.message();
      gpus.cuda.release();
    });
  }
}

TEST(CoordinatorGpuFailures, WhatTheGpuNeverDoesIsReported) {
  NcclWorld gpus(1);
  CoordinatorWorld world;
  world.options.stall_fail_s = 0.05;
  with_gpus(gpus, world, 1, [&](int, RankParts& parts, GpuRank& gpu) {
    std::vector<float> value(2000, 1.0F);
    gpus.cuda.hold();
    gpu.wait(gpu.submit(make_request("layer.weight", {2000}), value.data(), value.data()));
    const Status status = fatal_status(*parts.coordinator, "later");
    EXPECT_EQ(Code::kTimeout, status.code());
    EXPECT_TRUE(contains(status.message(), "'layer.weight'")) << status.message();
    gpus.cuda.release();
  });
}

}  // namespace
}  // namespace aiacc
