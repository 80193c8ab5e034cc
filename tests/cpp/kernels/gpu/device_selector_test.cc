#include "csrc/kernels/gpu/device_selector.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/selection/distributions.h"
#include "tests/cpp/support/fakes/fake_cuda.h"

namespace aiacc {
namespace {

TEST(DeviceSelectorTest, QueuesThreeLaunchesAStepAndReturns) {
  FakeCuda cuda;
  CudaContext context = nullptr;
  CudaStream stream = nullptr;
  cuda.driver().primary_context_retain(&context, 0);
  cuda.driver().context_push(context);
  cuda.driver().stream_create(&stream, kCudaStreamNonBlocking, 0);
  const DeviceSelector selector(cuda.driver(), {"an image", 8});

  constexpr std::size_t kCount = 50000;
  constexpr std::size_t kPairs = 500;
  std::vector<float> residuals[2] = {std::vector<float>(kCount), std::vector<float>(kCount)};
  std::vector<float> expected_residual(kCount);
  std::vector<unsigned char> workspace(select_workspace_bytes(kCount, kPairs));
  SelectState state = {};
  ThresholdTrack track;
  SelectScratch scratch;
  for (std::uint64_t step = 0; step < 4; ++step) {
    const std::vector<float> in =
        elements_of(Shape::kLaplace, kCount, static_cast<std::uint32_t>(step));
    std::vector<std::uint32_t> expected(2 * kPairs);
    select_largest(expected.data(),
                   in.data(),
                   expected_residual.data(),
                   kCount,
                   kPairs,
                   0.5F,
                   SelectMode::kTracked,
                   step,
                   track,
                   scratch);
    std::vector<std::uint32_t> wire(2 * kPairs);
    const int before = cuda.synchronising_calls();
    const int launches = cuda.launches();
    cuda.hold();
    selector.select(stream,
                    plan_selection(wire.data(),
                                   in.data(),
                                   residuals[step % 2].data(),
                                   residuals[1 - step % 2].data(),
                                   kCount,
                                   kPairs,
                                   0.5F,
                                   SelectMode::kTracked,
                                   step,
                                   &state,
                                   workspace.data()));
    EXPECT_EQ(std::vector<std::uint32_t>(2 * kPairs), wire);
    EXPECT_EQ(before, cuda.synchronising_calls());
    EXPECT_EQ(3, cuda.launches() - launches);
    cuda.release();
    cuda.drain();
    EXPECT_EQ(expected, wire);
    EXPECT_EQ(expected_residual, residuals[1 - step % 2]);
  }
  EXPECT_EQ(0, cuda.misuses());
  EXPECT_GT(state.track.hits, 0U);
}

}  // namespace
}  // namespace aiacc
