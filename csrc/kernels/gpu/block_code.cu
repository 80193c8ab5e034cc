// Encodes and decodes blocks with a scale; a device image of its own (device_image.h).

#include "csrc/kernels/gpu/block_code_body.h"

using namespace aiacc;  // the list names types

/// Blocks of a multiprocessor: elsewhere an encoder would spill some registers of four.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 1000
#define AIACC_ENCODE_BLOCKS 4
#else
#define AIACC_ENCODE_BLOCKS 3
#endif

namespace {

/// Read from one thread, so that the compiler knows that a warp stays together.
__device__ std::uint32_t warp_of_block() {
  return __shfl_sync(0xffffffff, threadIdx.x / kWarpThreads, 0);
}

}  // namespace

#define AIACC_BLOCK_CODE_KERNELS(name, Format)                                         \
  extern "C" __global__ void __launch_bounds__(kBlockCodeThreads, AIACC_ENCODE_BLOCKS) \
      aiacc_encode_##name(const __grid_constant__ BlockEncoding plan) {                \
    constexpr std::uint32_t kWarps = kBlockCodeThreads / kWarpThreads;                 \
    DeviceWarp<CodeThread> warp;                                                       \
    BlockEncodeBody<Format>::share(                                                    \
        warp, plan, blockIdx.x * kWarps + warp_of_block(), gridDim.x * kWarps);        \
  }                                                                                    \
  extern "C" __global__ void __launch_bounds__(kBlockCodeThreads, 3)                   \
      aiacc_decode_##name(const __grid_constant__ BlockDecoding plan) {                \
    constexpr std::uint32_t kWarps = kBlockCodeThreads / kWarpThreads;                 \
    DeviceWarp<CodeThread> warp;                                                       \
    BlockDecodeBody<Format>::share(                                                    \
        warp, plan, blockIdx.x * kWarps + warp_of_block(), gridDim.x * kWarps);        \
  }
AIACC_BLOCK_CODES(AIACC_BLOCK_CODE_KERNELS)
