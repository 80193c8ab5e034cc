// LARS on lists of tensors; a device image of its own (device_image.h).

#include "csrc/kernels/gpu/optim/lars_body.h"

using namespace aiacc;

#define AIACC_LARS_KERNELS(suffix, Batch)                              \
  extern "C" __global__ void __launch_bounds__(kOptimThreads, 4)       \
      aiacc_lars_norms##suffix(const __grid_constant__ Batch batch) {  \
    DeviceBlock<OptimThread, LarsShared, kOptimThreads> block;         \
    lars_norms_share(block, batch);                                    \
  }                                                                    \
  extern "C" __global__ void __launch_bounds__(kOptimThreads, 4)       \
      aiacc_lars_update##suffix(const __grid_constant__ Batch batch) { \
    DeviceBlock<OptimThread, LarsShared, kOptimThreads> block;         \
    lars_update_share(block, batch, gridDim.x);                        \
  }
AIACC_LARS_KERNELS(, SmallLarsBatch)
AIACC_LARS_KERNELS(_large, LargeLarsBatch)
