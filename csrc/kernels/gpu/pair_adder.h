#pragma once

#include <cstddef>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/gpu/device_module.h"

namespace aiacc {

/// Adds pairs up on one device, by the kernel of add_pairs.cu: scatter_add of select.h for memory
/// of the device, whose bits it has.
///
/// Threads: any. The context of the device is current in whatever thread constructs it, calls it
/// or destroys it. The driver's table outlives it.
class PairAdder {
 public:
  /// Loads the kernel, so that no launch has to. Blocks and throws as DeviceModule does.
  explicit PairAdder(const CudaDriver& driver,
                     const DeviceImage& image = device_image(DeviceCode::kAddPairs));

  /// Queues out[index] += value for `pairs` pairs on `wire`, at a multiple of 4, and returns. Their
  /// indices differ; an element of `out` becomes NaN if one is not below `count`. Both are below
  /// 2^32. Throws Error(kEngine) if the launch fails.
  void add(
      CudaStream stream, float* out, const void* wire, std::size_t pairs, std::size_t count) const;

 private:
  const DeviceModule module_;
  const DeviceKernel kernel_;
};

}  // namespace aiacc
