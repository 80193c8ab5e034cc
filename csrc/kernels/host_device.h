#pragma once

// Marks what the CUDA kernels and their twins on the host share.
#ifdef __CUDACC__
#define AIACC_HOST_DEVICE __host__ __device__
#define AIACC_UNROLL _Pragma("unroll")
#define AIACC_NOINLINE __noinline__
#else
#define AIACC_HOST_DEVICE
#define AIACC_UNROLL
#define AIACC_NOINLINE
#endif

namespace aiacc {

/// A product that is rounded: nvcc would make a fused multiply-add of it and of a sum, and the
/// device would give other bits than the host, which is compiled without.
AIACC_HOST_DEVICE inline float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
AIACC_HOST_DEVICE inline double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

}  // namespace aiacc
