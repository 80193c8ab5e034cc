#pragma once

#include <cstddef>

namespace aiacc {

/// The compiled kernels of a .cu file, in the driver's format for several architectures (fat
/// binary): what `CudaDriver::module_load` takes. `data` is null in a build without nvcc
/// (no_device_image.cc).
struct DeviceImage {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

enum class DeviceCode {
  kAddPairs,   ///< gpu/add_pairs.cu
  kBatchCopy,  ///< batch_copy.cu
  kBlockCode,  ///< gpu/block_code.cu
  kFactors,    ///< gpu/optim/factor_packing.cu
  kLamb,       ///< gpu/optim/lamb_update.cu
  kLars,       ///< gpu/optim/lars_update.cu
  kSelection,  ///< gpu/selection.cu
};

DeviceImage device_image(DeviceCode code);

}  // namespace aiacc
