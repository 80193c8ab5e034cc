#pragma once

#include <cstddef>
#include <vector>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/device_image.h"
#include "csrc/kernels/gpu/optim/batch_launcher.h"
#include "csrc/kernels/gpu/optim/lamb_update.h"

namespace aiacc {

/// Steps of LAMB on one device, by the kernels of lamb_update.cu.
///
/// Threads: as of BatchLauncher.
class DeviceLamb {
 public:
  /// Loads the kernels, so that no launch has to. Blocks and throws as DeviceModule does.
  explicit DeviceLamb(const CudaDriver& driver,
                      const DeviceImage& image = device_image(DeviceCode::kLamb));

  /// Queues a step of all tensors on `stream` and returns; nothing comes back to the host. For up
  /// to 510 tensors two launches, or one if options.adapt is false. The tensors and `memory` stay
  /// until the stream is past the step; a stream that is captured records it.
  ///
  /// The bits are the same in every run on a kind of device. Throws what plan_lamb does;
  /// Error(kEngine) if a launch fails.
  void step(CudaStream stream,
            const std::vector<LambTensor>& tensors,
            const LambOptions& options,
            const LambMemory& memory);
  unsigned norm_blocks(std::size_t tensors) const { return launcher_.norm_blocks(tensors); }

 private:
  BatchLauncher<SmallLambBatch, LargeLambBatch> launcher_;
};

}  // namespace aiacc
