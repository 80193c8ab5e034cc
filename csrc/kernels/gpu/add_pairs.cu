// Adds pairs of values and indices up; a device image of its own (device_image.h).

#include "csrc/kernels/gpu/add_pairs.h"

namespace aiacc {

extern "C" __global__ void __launch_bounds__(kAddPairsThreads)
    aiacc_add_pairs(const __grid_constant__ PairAddition plan) {
  add_pairs_share(plan, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
}

}  // namespace aiacc
