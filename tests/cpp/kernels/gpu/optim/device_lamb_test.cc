#include "csrc/kernels/gpu/optim/device_lamb.h"

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

class DeviceLambTest : public GpuKernelsTest {
 protected:
  DeviceLambTest() {
    options_.lr = 0.05;
    options_.beta1 = 0.9;
    options_.beta2 = 0.999;
    options_.eps = 1e-6;
    options_.weight_decay = 0.01;
    options_.largest_ratio = std::numeric_limits<double>::infinity();
  }

  /// A step of so many tensors at once, and one tensor after another; the launches of the first.
  int compare(DeviceLamb& lamb, std::size_t tensors) {
    std::vector<std::vector<float>> arrays[2];
    std::vector<LambTensor> sides[2];
    for (int side = 0; side < 2; ++side) {
      for (unsigned i = 0; i < tensors; ++i) {
        const std::size_t count = i % 40 == 7 ? 9000 : i % 40;
        arrays[side].push_back(numbers(count, 2 * i));
        arrays[side].push_back(numbers(count, 2 * i + 1));
        arrays[side].emplace_back(count);
        arrays[side].emplace_back(count);
        std::vector<float>* last = &arrays[side].back();
        sides[side].push_back(
            {last[-3].data(), last[-2].data(), last[-1].data(), last->data(), nullptr, 1.0, count});
      }
    }
    std::vector<unsigned char> workspace(optim_workspace_bytes(tensors));
    const int before = cuda_.synchronising_calls();
    const int launches = cuda_.launches();
    const auto untouched = arrays[0];
    cuda_.hold();
    lamb.step(stream_, sides[0], options_, {nullptr, nullptr, workspace.data()});
    EXPECT_EQ(untouched, arrays[0]);
    EXPECT_EQ(before, cuda_.synchronising_calls());
    const int made = cuda_.launches() - launches;
    cuda_.release();
    for (const LambTensor& tensor : sides[1]) {
      lamb.step(stream_, {tensor}, options_, {nullptr, nullptr, workspace.data()});
    }
    cuda_.drain();
    EXPECT_NE(untouched, arrays[0]);
    for (std::size_t i = 0; i < arrays[0].size(); ++i) {
      for (std::size_t at = 0; at < arrays[0][i].size(); ++at) {
        EXPECT_NEAR(arrays[1][i][at], arrays[0][i][at], 1e-6) << i;
      }
    }
    return made;
  }

  LambOptions options_;
};

TEST_F(DeviceLambTest, QueuesTwoLaunchesForAllTensors) {
  DeviceLamb lamb(driver(), image());
  for (const std::size_t tensors : {2, 62, 63, 510}) {
    EXPECT_EQ(2, compare(lamb, tensors));
  }
  EXPECT_EQ(4, compare(lamb, 520));
  options_.adapt = false;
  EXPECT_EQ(1, compare(lamb, 161));
  EXPECT_EQ(0, cuda_.misuses());
}

TEST_F(DeviceLambTest, ABrokenDeviceFailsTheStep) {
  DeviceLamb lamb(driver(), image());
  std::vector<float> memory(16);
  float* at = memory.data();
  std::vector<unsigned char> workspace(optim_workspace_bytes(1));
  cuda_.break_with(700);
  EXPECT_THROW(lamb.step(stream_,
                         {{at, at + 4, at + 8, at + 12, nullptr, 1.0, 4}},
                         options_,
                         {nullptr, nullptr, workspace.data()}),
               Error);
}

}  // namespace
}  // namespace aiacc
