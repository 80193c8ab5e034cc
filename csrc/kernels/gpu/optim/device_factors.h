#pragma once

#include <vector>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/device_image.h"
#include "csrc/kernels/gpu/device_module.h"
#include "csrc/kernels/gpu/optim/factor_packing.h"

namespace aiacc {

/// Packs and unpacks factors on one device, by the kernels of factor_packing.cu.
///
/// Threads: one at a time. The context of the device is current in whatever thread constructs it,
/// calls it or destroys it. The driver's table outlives it.
class DeviceFactors {
 public:
  /// Loads the kernels, so that no launch has to. Blocks and throws as DeviceModule does.
  explicit DeviceFactors(const CudaDriver& driver,
                         const DeviceImage& image = device_image(DeviceCode::kFactors));

  /// Queues `work` on all stacks, which do not overlap, on `stream` and returns: a launch for up to
  /// 73 stacks. Their memory stays until the stream is past it; a stream that is captured records
  /// it. Throws what choose_factor_kernel and plan_factors do; Error(kEngine) if a launch fails.
  void run(CudaStream stream,
           FactorWork work,
           DataType dtype,
           const std::vector<FactorStack>& stacks);

 private:
  const DeviceModule module_;
  std::vector<DeviceKernel> kernels_;  ///< as factor_kernels
  FactorBatch batch_;
};

}  // namespace aiacc
