#pragma once

#include <algorithm>
#include <cstddef>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/gpu/device_module.h"
#include "csrc/kernels/gpu/optim/optim_kernels.h"
#include "csrc/kernels/gpu/optim/tensor_shares.h"

namespace aiacc {

/// Launches the kernels of an optimizer on one device, with batches of two sizes.
///
/// Threads: one at a time. The context of the device is current in whatever thread constructs it,
/// calls it or destroys it. The driver's table outlives it.
template <class Small, class Large>
class BatchLauncher {
 public:
  /// Loads the kernels, so that no launch has to. Blocks and throws as DeviceModule does.
  BatchLauncher(const CudaDriver& driver,
                const DeviceImage& image,
                const OptimKernels<Small>& small,
                const OptimKernels<Large>& large)
      : module_(driver, image), small_(find(small)), large_(find(large)) {}

  /// Calls plan(at, count, resident, batch) for runs of at most Large::kTensors of `tensors`
  /// tensors, and launches what the batch needs, none for no chunks. Throws what `plan` does;
  /// Error(kEngine) if a launch fails.
  template <class Plan>
  void launch(CudaStream stream, std::size_t tensors, Plan plan) {
    for (std::size_t at = 0; at < tensors; at += Large::kTensors) {
      const std::size_t count = std::min(tensors - at, Large::kTensors);
      if (count <= Small::kTensors) {
        plan(at, count, small_.first.resident, small_batch_);
        launch_planned(small_, stream, small_batch_);
      } else {
        plan(at, count, large_.first.resident, large_batch_);
        launch_planned(large_, stream, large_batch_);
      }
    }
  }
  /// At most so many blocks add up norms, of so many tensors: a sum's last bits follow from it.
  unsigned norm_blocks(std::size_t tensors) const {
    return (tensors <= Small::kTensors ? small_ : large_).first.resident;
  }

 private:
  struct Pair {
    DeviceKernel first;
    DeviceKernel second;
  };
  template <class Batch>
  Pair find(const OptimKernels<Batch>& kernels) const {
    return {module_.find(kernels.first_name, kOptimThreads),
            module_.find(kernels.second_name, kOptimThreads)};
  }
  template <class Batch>
  void launch_planned(const Pair& pair, CudaStream stream, Batch& batch) const {
    if (batch.chunks == 0) {
      return;
    }
    if ((batch.needs & kFirstKernel) != 0) {
      module_.launch(pair.first, stream, batch.norm_blocks, kOptimThreads, batch);
    }
    if ((batch.needs & kSecondKernel) != 0) {
      // As many as run at a time: each has an equal share, so there is no last wave of a few.
      const unsigned blocks = std::min(batch.chunks, pair.second.resident);
      module_.launch(pair.second, stream, blocks, kOptimThreads, batch);
    }
  }

  const DeviceModule module_;
  const Pair small_;
  const Pair large_;
  Small small_batch_;
  Large large_batch_;
};

}  // namespace aiacc
