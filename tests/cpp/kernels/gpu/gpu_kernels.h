#pragma once

#include <gtest/gtest.h>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/device_image.h"
#include "tests/cpp/support/fakes/fake_cuda.h"

namespace aiacc {

/// A GPU in software with its context current, a stream, and an image for who loads kernels.
class GpuKernelsTest : public testing::Test {
 protected:
  GpuKernelsTest() {
    CudaContext context = nullptr;
    driver().primary_context_retain(&context, 0);
    driver().context_push(context);
    driver().stream_create(&stream_, kCudaStreamNonBlocking, 0);
  }

  const CudaDriver& driver() const { return cuda_.driver(); }
  static DeviceImage image() { return {"an image", 8}; }

  FakeCuda cuda_;
  CudaStream stream_ = nullptr;
};

}  // namespace aiacc
