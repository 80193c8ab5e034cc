#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/coordinators.h"
#include "tests/cpp/support/fakes/fake_cuda.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {

/// Coordinators that stage tensors on GPU 0, over a driver in software. The device memory of the
/// fake is host memory, so both ways use the same.
class StagingSuite : public CoordinatorSuite {
 protected:
  StagingSuite() {
    world_.options.staging = [this]() -> const CudaDriver& { return cuda_.driver(); };
  }
  ~StagingSuite() override { EXPECT_EQ(cuda_.misuses(), 0); }

  /// In host memory (device -1) or on the device; the bytes of the results, or an error.
  std::vector<std::byte> result_of(
      Coordinator& coordinator, Request request, int rank, int device, void* residual = nullptr) {
    const std::vector<std::byte> input = numbers(request, rank);
    std::vector<std::byte> output(input.size());
    request.device = device;
    request.name += device < 0 ? ".host" : ".gpu";
    auto submitted = coordinator.acquire();
    submitted->request = std::move(request);
    submitted->buffers[0].input = input.data();
    submitted->buffers[0].output = output.data();
    submitted->buffers[0].residual = residual;
    const Handle handle = coordinator.submit(std::move(submitted));
    const auto operation = coordinator.wait(handle);
    if (device >= 0) {
      coordinator.device_path().order_after(*operation, nullptr);
      cuda_.drain();
    }
    coordinator.release(handle);
    return output;
  }
  void expect_bits_of_host(Coordinator& coordinator, const Request& request, int rank) {
    EXPECT_EQ(result_of(coordinator, request, rank, 0), result_of(coordinator, request, rank, -1))
        << request.name;
  }

  /// Numbers whose sums are not exact: what is added in another order has other last bits.
  static std::vector<std::byte> numbers(const Request& request, int rank) {
    std::vector<std::byte> bytes(request.tensors[0].bytes());
    const std::size_t size = size_of(request.tensors[0].dtype);
    std::mt19937 random(static_cast<unsigned>(rank + 1));
    std::uniform_real_distribution<float> distribution(-1, 1);
    for (std::byte* at = bytes.data(); at < bytes.data() + bytes.size(); at += size) {
      const float value = distribution(random);
      const double wide = value;
      const auto half = static_cast<std::uint16_t>(0x3c00U + random() % 1000);
      std::memcpy(at,
                  size == sizeof value  ? static_cast<const void*>(&value)
                  : size == sizeof wide ? static_cast<const void*>(&wide)
                                        : &half,
                  size);
    }
    return bytes;
  }

  /// Memory comes with the first operations; later ones, which `step(coordinator, rank)` does, make
  /// no call that may wait for the GPU, on any thread.
  template <class Step>
  void check_steady_state(Step step) {
    std::atomic<int> after_warm_up{0};
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      for (int i = 0; i < 12; ++i) {
        step(*parts.coordinator, rank);
        if (i == 5 && rank == 0) {
          after_warm_up = cuda_.synchronising_calls();
        }
        sum(*parts.coordinator, "step", 1);  // nobody is ahead of rank 0
      }
      EXPECT_TRUE(rank > 0 || cuda_.synchronising_calls() == after_warm_up);
      sum(*parts.coordinator, "end", 1);
    });
  }

  /// A device that breaks is an error, and no hang.
  void check_broken_device(std::int64_t elements) {
    std::atomic<int> here{0};
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      Coordinator& coordinator = *parts.coordinator;
      result_of(coordinator, make_request("before", {elements}), rank, 0);
      sum(coordinator, "everybody is here", 1);
      await_all(here, world_.size);  // the first would end the sum of the others
      cuda_.break_with(700);
      const auto use = [&] { result_of(coordinator, make_request("after", {elements}), rank, 0); };
      EXPECT_FALSE(status_of(use).ok());
    });
  }

  FakeCuda cuda_;
};

}  // namespace aiacc
