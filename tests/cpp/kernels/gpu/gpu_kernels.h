#pragma once

#include <gtest/gtest.h>

#include "csrc/kernels/device_image.h"
#include "tests/cpp/support/fakes/fake_cuda.h"
#include "tests/gpu/gpu_rig.h"

namespace aiacc {

/// A GPU in software with its context current, a stream, and an image for who loads kernels.
class GpuKernelsTest : public testing::Test {
 protected:
  const CudaDriver& driver() const { return cuda_.driver(); }
  static DeviceImage image() { return {"an image", 8}; }

  /// What `queue` queues has not begun when it returns, and it does not wait for the GPU; then it
  /// runs. The launches that it took.
  template <class Queue>
  int launches_of(Queue queue) {
    const int waits = cuda_.synchronising_calls();
    const int launches = cuda_.launches();
    cuda_.hold();
    queue();
    EXPECT_EQ(kCudaNotReady, driver().stream_query(rig_.stream())) << "nothing is queued";
    EXPECT_EQ(waits, cuda_.synchronising_calls());
    cuda_.release();
    cuda_.drain();
    EXPECT_EQ(0, cuda_.misuses());
    return cuda_.launches() - launches;
  }

  FakeCuda cuda_;
  GpuRig rig_{cuda_.driver()};
};

}  // namespace aiacc
