// Packed factors of K-FAC; a device image of its own (device_image.h).

#include "csrc/kernels/gpu/optim/factor_packing_body.h"

using namespace aiacc;  // the list names types

/// Blocks of a multiprocessor: an average with the registers of four would spill some.
#define AIACC_FACTOR_BLOCKS(work) (FactorWork::work == FactorWork::kAverage ? 3 : 4)

#define AIACC_FACTOR_KERNEL(name, work, T)                                                \
  extern "C" __global__ void __launch_bounds__(kFactorThreads, AIACC_FACTOR_BLOCKS(work)) \
      aiacc_factors_##name(const __grid_constant__ FactorBatch batch) {                   \
    DeviceBlock<FactorThread, FactorShared<T>, kFactorThreads> block;                     \
    factor_share<FactorWork::work, T>(block, batch, gridDim.x);                           \
  }
AIACC_FACTOR_KERNELS(AIACC_FACTOR_KERNEL)
