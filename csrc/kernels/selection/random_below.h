#pragma once

#include <cstdint>

#include "csrc/kernels/host_device.h"

namespace aiacc {

/// A number below `bound`, which is positive: the same on every machine, unlike the distributions
/// of the standard library. splitmix64, and the upper half of a product of 128 bits.
AIACC_HOST_DEVICE inline std::uint64_t random_below(std::uint64_t seed, std::uint64_t bound) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  x ^= x >> 31;
#ifdef __CUDA_ARCH__
  return __umul64hi(x, bound);
#else
  __extension__ using Product = unsigned __int128;
  return static_cast<std::uint64_t>((Product{x} * bound) >> 64);
#endif
}

}  // namespace aiacc
