// LAMB on lists of tensors; a device image of its own (device_image.h).

#include "csrc/kernels/gpu/optim/lamb_body.h"

using namespace aiacc;

#define AIACC_LAMB_KERNELS(suffix, Batch)                              \
  extern "C" __global__ void __launch_bounds__(kOptimThreads, 4)       \
      aiacc_lamb_norms##suffix(const __grid_constant__ Batch batch) {  \
    DeviceBlock<OptimThread, LambShared, kOptimThreads> block;         \
    lamb_first_share(block, batch);                                    \
  }                                                                    \
  extern "C" __global__ void __launch_bounds__(kOptimThreads, 4)       \
      aiacc_lamb_update##suffix(const __grid_constant__ Batch batch) { \
    DeviceBlock<OptimThread, LambShared, kOptimThreads> block;         \
    lamb_second_share(block, batch, gridDim.x);                        \
  }
AIACC_LAMB_KERNELS(, SmallLambBatch)
AIACC_LAMB_KERNELS(_large, LargeLambBatch)
