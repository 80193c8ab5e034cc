#pragma once

// Marks what the CUDA kernels and their twins on the host share.
#ifdef __CUDACC__
#define AIACC_HOST_DEVICE __host__ __device__
#define AIACC_UNROLL _Pragma("unroll")
#else
#define AIACC_HOST_DEVICE
#define AIACC_UNROLL
#endif
