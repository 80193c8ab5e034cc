// Packed factors of K-FAC; a device image of its own (device_image.h).

#include "csrc/kernels/gpu/optim/factor_packing_body.h"

using namespace aiacc;  // the list names types

// Blocks of a multiprocessor: these would spill some registers of more.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define AIACC_AVERAGE_BLOCKS 2
#else
#define AIACC_AVERAGE_BLOCKS 3
#endif
#define AIACC_FACTOR_BLOCKS(work, T)                               \
  (FactorWork::work == FactorWork::kAverage ? AIACC_AVERAGE_BLOCKS \
                                            : (sizeof(T) > sizeof(float) ? 3 : 4))

#define AIACC_FACTOR_KERNEL(name, work, T)                                                   \
  extern "C" __global__ void __launch_bounds__(kFactorThreads, AIACC_FACTOR_BLOCKS(work, T)) \
      aiacc_factors_##name(const __grid_constant__ FactorBatch batch) {                      \
    DeviceBlock<FactorThread, FactorShared<T>, kFactorThreads> block;                        \
    factor_share<FactorWork::work, T>(block, batch, gridDim.x);                              \
  }
AIACC_FACTOR_KERNELS(AIACC_FACTOR_KERNEL)
