#pragma once

#include <vector>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/gpu/device_module.h"
#include "csrc/kernels/gpu/selection.h"

namespace aiacc {

/// Selections on one device, by the kernels of selection.cu: select.h for memory of the device. The
/// pairs and every bit of the residual are those of the CPU.
///
/// Threads: any. The context of the device is current in whatever thread constructs it, calls it
/// or destroys it. The driver's table outlives it.
class DeviceSelector {
 public:
  /// Loads the kernels, so that no launch has to. Blocks and throws as DeviceModule does.
  explicit DeviceSelector(const CudaDriver& driver,
                          const DeviceImage& image = device_image(DeviceCode::kSelection));

  /// Queues the kernels on `stream` and returns; nothing comes back to the host. What `plan` points
  /// to stays until the stream is past it, and the state's other selections come before or after
  /// it. Where something is not finite, the state's result says so, and the residual is that of
  /// before, also where it moves. Throws Error(kEngine) if the launch fails.
  ///
  /// With a residual that moves (`residual_out` is other memory) everything is read once. With one
  /// in place it is read twice, since nothing may be written before all is known to be finite.
  void select(CudaStream stream, const SelectPlan& plan) const;

 private:
  const DeviceModule module_;
  std::vector<DeviceKernel> kernels_;
  unsigned resident_ = kSelectMostBlocks;  ///< blocks of each
};

}  // namespace aiacc
