#pragma once

#include <vector>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/batch_copy.h"
#include "csrc/kernels/device_image.h"
#include "csrc/kernels/gpu/device_module.h"

namespace aiacc {

/// Packs and unpacks on one device, by the kernels of csrc/kernels/batch_copy.cu.
///
/// Threads: one at a time. The context of the device is current in whatever thread constructs it,
/// calls it or destroys it. The driver's table outlives it.
class BatchCopier {
 public:
  /// Loads all kernels, so that no launch has to. Blocks, may wait for the GPU. Throws
  /// Error(kUnsupported) if the image is empty, Error(kEngine) if it does not suit the device or
  /// the driver.
  explicit BatchCopier(const CudaDriver& driver,
                       const DeviceImage& image = device_image(DeviceCode::kBatchCopy));

  /// Queues the copies on `stream` and returns: one launch for up to 1022 segments. Nothing but the
  /// segments' memory, and `reports`, has to stay until the stream is past them. `reports`: if the
  /// job checks, one for each segment, set to zero, in memory that the device can write; else null.
  /// Throws what choose_copy_kernel and plan_copies do, before it has queued anything;
  /// Error(kEngine) if a launch fails.
  void enqueue(CudaStream stream,
               const CopyJob& job,
               const std::vector<CopySegment>& segments,
               CopyReport* reports = nullptr);

 private:
  template <class Batch>
  void launch(const DeviceKernel& kernel,
              const CopyKernel& shape,
              CudaStream stream,
              const CopyJob& job,
              const CopySegment* segments,
              std::size_t count,
              CopyReport* reports,
              Batch& batch);

  const DeviceModule module_;
  std::vector<DeviceKernel> small_;  ///< by the numbers of copy_kernels()
  std::vector<DeviceKernel> large_;
  SmallCopyBatch small_batch_;
  LargeCopyBatch large_batch_;
};

}  // namespace aiacc
