#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {
namespace {

/// A graph that somebody else in the process captures all the while, in the mode "global".
class OtherCapture {
 public:
  explicit OtherCapture(FakeCuda& cuda) : cuda_(cuda), device_(Device::open(cuda.driver(), 0)) {
    const Device::Scope scope(*device_);
    cuda.driver().stream_create(&stream_, kCudaStreamNonBlocking, 0);
    cuda.set_capturing(stream_, true);
  }
  ~OtherCapture() { cuda_.set_capturing(stream_, false); }
  OtherCapture(const OtherCapture&) = delete;
  OtherCapture& operator=(const OtherCapture&) = delete;

  /// The call that has spoilt it, or "".
  std::string spoilt_by() const { return cuda_.spoilt_by(); }

 private:
  FakeCuda& cuda_;
  const std::shared_ptr<Device> device_;
  CudaStream stream_ = nullptr;
};

/// From the first operation, which opens and loads everything, to the end of the job.
TEST(CoordinatorGpuFailures, WhatAnotherThreadCapturesIsNotSpoilt) {
  for (const Place place : {Place::kNccl, Place::kStaged}) {
    for (const FiniteMode mode : {FiniteMode::kOff, FiniteMode::kRaise}) {
      NcclWorld gpus(2);
      const OtherCapture capture(gpus.cuda);
      CoordinatorWorld world;
      world.options.check_finite = mode;
      world.options.stall_warn_s = 0.01;  // looks after the GPU all the time
      with_submitters(gpus, place, world, 2, [&](int rank, RankParts& parts, Submitter& gpu) {
        for (int step = 0; step < 5; ++step) {
          std::vector<float> values(30'011, 1.0F);
          gpu.finish(gpu.submit(make_request("x"), values));
          EXPECT_EQ(2.0F, values.front());
          const Handle handle =
              gpu.submit(make_request("g", OpKind::kAllgather, {rank + 1}), values.data(), nullptr);
          EXPECT_EQ(12U, gpu.gathered(*gpu.wait(handle)).size());
          parts.coordinator->release(handle);
        }
      });
      EXPECT_EQ("", capture.spoilt_by());
    }
  }
}

/// Loading kernels can take many seconds, and the peers' patience is not so long.
TEST(CoordinatorGpuFailures, TheJobGoesOnWhileKernelsAreLoaded) {
  NcclWorld gpus(2);
  gpus.cuda.begin_loading();
  CoordinatorWorld world;
  world.options.stall_warn_s = 0.002;  // whoever drives looks after the GPU all the time
  std::atomic<int> through{0};
  with_gpus(gpus, world, 2, [&](int, RankParts& parts, Submitter& gpu) {
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
  with_gpus(gpus, {}, 2, [&](int, RankParts& parts, Submitter& gpu) {
    await_all(arrived, 3);
    gpus.cuda.refuse_to_open(1);
    await_all(arrived, 6);
    float value = 1;
    const Status status = status_of([&] {
      const Handle handle = gpu.submit(make_request("x", {1}), &value, &value);
      parts.coordinator->wait(handle);
    });
    expect_error(status, Code::kEngine, {"rank 1, GPU 1: [cuda] primary_context_retain failed"});
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
    expect_error(status, Code::kEngine, {"rank 0, GPU 0: no driver"});
  });
}

TEST(CoordinatorGpuFailures, ALostRankEndsAll) {
  const std::string kFault = "[core] rank 2 reports: a fault";
  NcclWorld gpus(3);
  std::atomic<int> told{0};
  const auto body = [&](int rank, RankParts& parts, Submitter& gpu) {
    std::vector<float> value(2000, 1.0F);
    gpu.finish(gpu.submit(make_request("x"), value));
    if (rank == 2) {
      parts.gpu->abort({Code::kEngine, "a fault"});
    }
    const Handle handle = gpu.submit(make_request("x"), value);
    // It may be queued on the others, where it waits for rank 2 on the GPU.
    const Status queued = status_of([&] { gpu.wait(handle); });
    EXPECT_TRUE(queued.ok() || queued.message() == kFault) << queued.message();
    const Status fatal = fatal_status(*parts.coordinator, "alone on " + std::to_string(rank));
    EXPECT_EQ(kFault, fatal.message());
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
    with_gpus(gpus, world, 1, [&](int, RankParts& parts, Submitter& gpu) {
      std::vector<float> value(2000, 1.0F);
      gpu.finish(gpu.submit(make_request("x"), value));
      gpus.cuda.hold();
      gpu.wait(gpu.submit(make_request("x"), value));
      // All calls are over, and it goes on to look.
      const int before = gpus.nccl.questions();
      yield_until([&] { return gpus.nccl.questions() >= before + 20; });
      if (of_nccl) {
        gpus.nccl.break_all_with(kNcclInternalError);
      } else {
        gpus.cuda.break_with(700);
      }
      yield_until([&] { return gpus.nccl.communicators() == 0; });  // until they are aborted
      const Status status = fatal_status(*parts.coordinator, "later");
      expect_error(status, Code::kEngine, {of_nccl ? "[nccl]" : "[cuda]"});
      gpus.cuda.release();
    });
  }
}

TEST(CoordinatorGpuFailures, WhatTheGpuNeverDoesIsReported) {
  NcclWorld gpus(1);
  CoordinatorWorld world;
  world.options.stall_fail_s = 0.05;
  with_gpus(gpus, world, 1, [&](int, RankParts& parts, Submitter& gpu) {
    std::vector<float> value(2000, 1.0F);
    gpus.cuda.hold();
    gpu.wait(gpu.submit(make_request("layer.weight"), value));
    const Status status = fatal_status(*parts.coordinator, "later");
    expect_error(status, Code::kTimeout, {"'layer.weight'"});
    gpus.cuda.release();
  });
}

TEST(CoordinatorGpuFailures, TooManyCombinationsOfGpus) {
  constexpr int kDevices = DeviceEngineCache::kSplitIds + 1;
  NcclWorld gpus(1, kNcclHeaderVersion, kDevices);
  with_gpus(gpus, Place::kNccl, {}, 1, [&](int, RankParts& parts) {
    const auto use = [&](int device) {
      Submitter gpu(gpus.cuda, parts, device);
      std::vector<float> values(1, 1);
      gpu.finish(gpu.submit(make_request("x"), values));
    };
    for (int device = 0; device + 1 < kDevices; ++device) {
      use(device);
    }
    expect_error(
        status_of([&] { use(kDevices - 1); }), Code::kEngine, {"more than 32 combinations"});
  });
}

}  // namespace
}  // namespace aiacc
