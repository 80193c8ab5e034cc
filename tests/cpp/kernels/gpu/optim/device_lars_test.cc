#include "csrc/kernels/gpu/optim/device_lars.h"

#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/optim/tensor_chunks.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/kernels/gpu/optim/tensors.h"

namespace aiacc {
namespace {

class DeviceLarsTest : public GpuKernelsTest {
 protected:
  DeviceLarsTest() {
    options_.lr = 0.5;
    options_.momentum = 0.9;
    options_.weight_decay = 0.01;
    options_.trust_coefficient = 0.02;
    options_.largest_ratio = std::numeric_limits<double>::infinity();
  }

  /// A step of `tensors` tensors on the device and one on the host, and the launches it took.
  int compare(DeviceLars& lars, std::size_t tensors) {
    std::vector<std::vector<float>> arrays[2];
    std::vector<LarsTensor> sides[2];
    for (int side = 0; side < 2; ++side) {
      for (unsigned i = 0; i < tensors; ++i) {
        const std::size_t count = i % 40 == 7 ? 9000 : i % 40;
        for (unsigned kind = 0; kind < 3; ++kind) {
          arrays[side].push_back(numbers(count, 3 * i + kind));
        }
        std::vector<float>* last = &arrays[side].back();
        sides[side].push_back({last[-2].data(), last[-1].data(), last->data(), count});
      }
    }
    std::vector<unsigned char> workspace(optim_workspace_bytes(tensors));
    const float lr = 0.25;
    const int before = cuda_.synchronising_calls();
    const int launches = cuda_.launches();
    const auto untouched = arrays[0];
    cuda_.hold();
    lars.step(stream_, sides[0], options_, &lr, workspace.data());
    EXPECT_EQ(untouched, arrays[0]);
    EXPECT_EQ(before, cuda_.synchronising_calls());
    cuda_.release();
    cuda_.drain();
    options_.lr = lr;
    lars_steps(sides[1], options_, 1);
    for (std::size_t i = 0; i < arrays[0].size(); ++i) {
      for (std::size_t at = 0; at < arrays[0][i].size(); ++at) {
        EXPECT_NEAR(arrays[1][i][at], arrays[0][i][at], 1e-6) << i;
      }
    }
    return cuda_.launches() - launches;
  }

  LarsOptions options_;
};

TEST_F(DeviceLarsTest, QueuesTwoLaunchesForAllTensors) {
  DeviceLars lars(driver(), image());
  for (const std::size_t tensors : {2, 99, 100, 816}) {
    EXPECT_EQ(2, compare(lars, tensors));
  }
  EXPECT_EQ(4, compare(lars, 820));
  options_.adapt = false;
  EXPECT_EQ(1, compare(lars, 161));
  EXPECT_EQ(0, cuda_.misuses());
}

TEST_F(DeviceLarsTest, NothingLaunchesNothing) {
  DeviceLars lars(driver(), image());
  lars.step(stream_, {}, options_, nullptr, nullptr);
  lars.step(stream_, {{nullptr, nullptr, nullptr, 0}}, options_, nullptr, nullptr);
  EXPECT_EQ(0, cuda_.launches());
}

TEST_F(DeviceLarsTest, ABrokenDeviceFailsTheStep) {
  DeviceLars lars(driver(), image());
  std::vector<float> memory(12);
  std::vector<unsigned char> workspace(optim_workspace_bytes(1));
  cuda_.break_with(700);
  EXPECT_THROW(lars.step(stream_,
                         {{memory.data(), memory.data() + 4, memory.data() + 8, 4}},
                         options_,
                         nullptr,
                         workspace.data()),
               Error);
}

TEST(DeviceLars, ABuildWithoutKernelsSaysSo) {
  FakeCuda cuda;
  EXPECT_THROW(DeviceLars(cuda.driver(), DeviceImage{}), Error);
}

}  // namespace
}  // namespace aiacc
