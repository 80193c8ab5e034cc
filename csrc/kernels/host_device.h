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
