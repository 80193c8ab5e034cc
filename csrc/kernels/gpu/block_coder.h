#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/gpu/block_code.h"
#include "csrc/kernels/gpu/device_module.h"

namespace aiacc {

/// Block codes on one device, by the kernels of block_code.cu: quantise.h for memory of the device.
/// Everything is queued on a stream and returns; what is pointed to stays until the stream is past
/// it. One launch each, none for no elements.
///
/// The bits are those of quantise.h. Floats lie at multiples of 4; where they lie at multiples of
/// 16, and the wire at one of 4, is the fast way. Throws what plan_encoding and plan_decoding do,
/// Error(kEngine) if a launch fails.
///
/// Threads: any. The context of the device is current in whatever thread constructs it, calls it
/// or destroys it. The driver's table outlives it.
class BlockCoder {
 public:
  /// Loads all kernels, so that no launch has to. Blocks and throws as DeviceModule does.
  explicit BlockCoder(const CudaDriver& driver,
                      const DeviceImage& image = device_image(DeviceCode::kBlockCode));

  void encode(CudaStream stream,
              void* wire,
              const void* in,
              void* residual,
              std::size_t count,
              const BlockCode& code,
              float factor,
              const Rounding& rounding,
              std::uint64_t first_index) const;
  void decode(CudaStream stream,
              void* out,
              const void* wire,
              std::size_t count,
              const BlockCode& code,
              float factor) const;
  void decode_add(CudaStream stream,
                  void* out,
                  const void* wire,
                  std::size_t count,
                  const BlockCode& code) const;

 private:
  template <class Plan>
  void launch(const DeviceKernel& kernel, CudaStream stream, Plan plan) const;

  const DeviceModule module_;
  std::vector<DeviceKernel> encode_;  ///< by the numbers of BlockFormat
  std::vector<DeviceKernel> decode_;
};

}  // namespace aiacc
