// Encodes and decodes blocks with a scale; a device image of its own (device_image.h).

#include "csrc/kernels/gpu/block_code_body.h"

using namespace aiacc;  // the list names types

#define AIACC_BLOCK_CODE_KERNELS(name, Format)                                             \
  extern "C" __global__ void __launch_bounds__(kBlockCodeThreads, 3)                       \
      aiacc_encode_##name(const __grid_constant__ BlockEncoding plan) {                    \
    constexpr std::uint32_t kWarps = kBlockCodeThreads / kWarpThreads;                     \
    DeviceWarp<CodeThread> warp;                                                           \
    BlockCodeBody<Format>::encode_share(                                                   \
        warp, plan, blockIdx.x * kWarps + threadIdx.x / kWarpThreads, gridDim.x * kWarps); \
  }                                                                                        \
  extern "C" __global__ void __launch_bounds__(kBlockCodeThreads, 3)                       \
      aiacc_decode_##name(const __grid_constant__ BlockDecoding plan) {                    \
    constexpr std::uint32_t kWarps = kBlockCodeThreads / kWarpThreads;                     \
    DeviceWarp<CodeThread> warp;                                                           \
    BlockCodeBody<Format>::decode_share(                                                   \
        warp, plan, blockIdx.x * kWarps + threadIdx.x / kWarpThreads, gridDim.x * kWarps); \
  }
AIACC_BLOCK_CODES(AIACC_BLOCK_CODE_KERNELS)
