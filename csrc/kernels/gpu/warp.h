#pragma once

// Bodies of CUDA kernels as phases, so that the same text runs on the device and, one thread after
// another, on the host, where tests compare it bit by bit. In a phase every thread of a warp does
// the same to a `Thread` of its own; between phases values change hands. No thread may read in a
// phase what another one writes in it.

#include <cstdint>

#include "csrc/kernels/gpu/block_code.h"
#include "csrc/kernels/host_device.h"

namespace aiacc {

AIACC_HOST_DEVICE inline std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  return a > b ? a : b;
}

/// The larger of a magnitude and that of `value`, as bits; beyond those of what is finite if either
/// is NaN.
AIACC_HOST_DEVICE inline std::uint32_t larger_magnitude(std::uint32_t magnitude, float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;"
      : "=f"(result)
      : "f"(__uint_as_float(magnitude)), "f"(fabsf(value)));
  return __float_as_uint(result);
#else
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return larger(magnitude, bits & 0x7fffffff);
#endif
}

/// Calls visit(i) for all i below `count`. The order must not matter: `backwards` is for tests of
/// that.
template <class Visit>
void each_of(std::uint32_t count, bool backwards, Visit visit) {
  for (std::uint32_t i = 0; i < count; ++i) {
    visit(backwards ? count - 1 - i : i);
  }
}

/// The warp of the host.
template <class Thread>
class HostWarp {
 public:
  /// Calls phase(number, thread) for every thread.
  template <class Phase>
  void each(Phase phase) {
    each_of(kWarpThreads, backwards, [&](std::uint32_t i) { phase(i, threads_[i]); });
  }
  /// Every thread's value becomes the largest of all.
  template <class Value>
  void largest(Value value) {
    std::uint32_t of_all = 0;
    for (Thread& thread : threads_) {
      of_all = larger(of_all, value(thread));
    }
    for (Thread& thread : threads_) {
      value(thread) = of_all;
    }
  }
  /// Every thread's `to` becomes `from` of thread `source`.
  template <class From, class To>
  void spread(std::uint32_t source, From from, To to) {
    const auto value = from(threads_[source]);
    for (Thread& thread : threads_) {
      to(thread) = value;
    }
  }
  /// Every thread's value becomes that of thread number + distance, modulo the warp.
  template <class Value>
  void rotate(std::uint32_t distance, Value value) {
    std::uint32_t before[kWarpThreads];
    for (std::uint32_t i = 0; i < kWarpThreads; ++i) {
      before[i] = value(threads_[i]);
    }
    for (std::uint32_t i = 0; i < kWarpThreads; ++i) {
      value(threads_[i]) = before[(i + distance) % kWarpThreads];
    }
  }

  bool backwards = false;

 private:
  Thread threads_[kWarpThreads];
};

#ifdef __CUDACC__
__device__ inline std::uint32_t largest_in_warp(std::uint32_t mine) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffff, mine);
#else
  for (int distance = 16; distance > 0; distance /= 2) {
    mine = larger(mine, __shfl_xor_sync(0xffffffff, mine, distance));
  }
  return mine;
#endif
}

/// One thread of the device as its warp.
template <class Thread>
class DeviceWarp {
 public:
  template <class Phase>
  __device__ void each(Phase phase) {
    phase(threadIdx.x % kWarpThreads, thread_);
    __syncwarp();
  }
  template <class Value>
  __device__ void largest(Value value) {
    value(thread_) = largest_in_warp(value(thread_));
  }
  template <class From, class To>
  __device__ void spread(std::uint32_t source, From from, To to) {
    to(thread_) = __shfl_sync(0xffffffff, from(thread_), static_cast<int>(source));
  }
  template <class Value>
  __device__ void rotate(std::uint32_t distance, Value value) {
    std::uint32_t& mine = value(thread_);
    mine = __shfl_sync(0xffffffff, mine, (threadIdx.x + distance) % kWarpThreads);
  }

 private:
  Thread thread_;
};
#endif

}  // namespace aiacc
