// The kernels that move batches of tensors. Compiled to a device image that the driver loads
// (device_image.h); nothing here runs on the host.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "csrc/kernels/batch_copy_body.h"
#include "csrc/kernels/batch_copy_pairs.h"

namespace aiacc {
namespace {

/// By the conversion instructions of the device, where it has them.
struct DeviceCodec {
  static __device__ float widen(float value) { return value; }
  static __device__ double widen(double value) { return value; }
  static __device__ float widen(Float16 value) {
    return __half2float(__ushort_as_half(value.bits));
  }
  static __device__ float widen(BFloat16 value) {
    return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
  }
  template <class F>
  static __device__ float widen(F value) {
#if __CUDA_ARCH__ >= 890
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits, interpretation<F>())));
#else
    return widen_float8(value);
#endif
  }

  template <class Out, class Wide>
  static __device__ Out narrow(Wide value) {
    if constexpr (std::is_same_v<Out, Wide>) {
      return value;
    } else if constexpr (std::is_same_v<Out, Float16>) {
      return {__half_as_ushort(__float2half_rn(value))};
    } else if constexpr (std::is_same_v<Out, BFloat16>) {
      return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
    } else {
#if __CUDA_ARCH__ >= 890
      // The instruction turns infinity into the largest number, too.
      const unsigned bits = __float_as_uint(value);
      const __nv_fp8_storage_t finite =
          __nv_cvt_float_to_fp8(value, __NV_SATFINITE, interpretation<Out>());
      const bool infinite = (bits & 0x7fffffffu) == 0x7f800000u;
      return {static_cast<std::uint8_t>(infinite ? (bits >> 24 & 0x80u) | Out::kInfinity : finite)};
#else
      return narrow_float8<Out>(value);
#endif
    }
  }

 private:
  template <class F>
  static __device__ constexpr __nv_fp8_interpretation_t interpretation() {
    return std::is_same_v<F, Float8E4M3> ? __NV_E4M3 : __NV_E5M2;
  }
};

}  // namespace
}  // namespace aiacc

using namespace aiacc;  // the list names types

#define AIACC_COPY_KERNEL(name, Operation, In, Out)                                         \
  extern "C" __global__ void __launch_bounds__(kCopyThreads)                                \
      aiacc_copy_##name(const __grid_constant__ SmallCopyBatch batch) {                     \
    copy_share<Operation<In, Out, DeviceCodec>>(batch, blockIdx.x, gridDim.x, threadIdx.x); \
  }                                                                                         \
  extern "C" __global__ void __launch_bounds__(kCopyThreads)                                \
      aiacc_copy_##name##_large(const __grid_constant__ LargeCopyBatch batch) {             \
    copy_share<Operation<In, Out, DeviceCodec>>(batch, blockIdx.x, gridDim.x, threadIdx.x); \
  }
AIACC_COPY_KERNELS(AIACC_COPY_KERNEL)
