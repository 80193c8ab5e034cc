#pragma once

#include <cstddef>
#include <vector>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/device_image.h"
#include "csrc/kernels/gpu/optim/batch_launcher.h"
#include "csrc/kernels/gpu/optim/lars_update.h"

namespace aiacc {

/// Steps of LARS on one device, by the kernels of lars_update.cu: lars.h for memory of the device.
///
/// Threads: as of BatchLauncher.
class DeviceLars {
 public:
  /// Loads the kernels, so that no launch has to. Blocks and throws as DeviceModule does.
  explicit DeviceLars(const CudaDriver& driver,
                      const DeviceImage& image = device_image(DeviceCode::kLars));

  /// Queues a step of all tensors, which do not overlap, on `stream` and returns; nothing comes
  /// back to the host. For up to 816 tensors a launch for all norms, unless options.adapt is false,
  /// and one for the update. `lr`: in memory of the device, instead of the options'; or null. The
  /// tensors, `lr` and `workspace`, which is optim_workspace_bytes, stay until the stream is past
  /// the step; a stream that is captured records it.
  ///
  /// The bits are the same in every run on a kind of device. Throws what plan_lars does;
  /// Error(kEngine) if a launch fails.
  void step(CudaStream stream,
            const std::vector<LarsTensor>& tensors,
            const LarsOptions& options,
            const float* lr,
            void* workspace);
  unsigned norm_blocks(std::size_t tensors) const { return launcher_.norm_blocks(tensors); }

 private:
  BatchLauncher<SmallLarsBatch, LargeLarsBatch> launcher_;
};

}  // namespace aiacc
