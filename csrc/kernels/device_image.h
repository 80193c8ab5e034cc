#pragma once

#include <cstddef>

namespace aiacc {

/// The compiled CUDA kernels, in the driver's format for several architectures (fat binary): what
/// `CudaDriver::module_load` takes. `data` is null in a build without nvcc (no_device_image.cc).
struct DeviceImage {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

DeviceImage device_image();

}  // namespace aiacc
