#pragma once

// As warp.h, for kernels whose blocks work together: all blocks run a phase, then all wait for one
// another. On the device that needs a cooperative launch. What decides about the course of a kernel
// is read from memory that only `one` writes, so that no block that is ahead changes it for those
// behind.

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "csrc/kernels/gpu/warp.h"
#include "csrc/kernels/host_device.h"

namespace aiacc {

// Changes of counters that threads share; they return what was there before, where it matters.
AIACC_HOST_DEVICE inline std::uint32_t add_to(std::uint32_t& counter, std::uint32_t more) {
#ifdef __CUDA_ARCH__
  return atomicAdd(&counter, more);
#else
  return __atomic_fetch_add(&counter, more, __ATOMIC_RELAXED);  // tests run blocks as threads
#endif
}
AIACC_HOST_DEVICE inline void raise_to(std::uint32_t& largest, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  atomicMax(&largest, value);
#else
  std::uint32_t seen = __atomic_load_n(&largest, __ATOMIC_RELAXED);
  while (seen < value && !__atomic_compare_exchange_n(
                             &largest, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}
AIACC_HOST_DEVICE inline void lower_to(std::uint32_t& least, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  atomicMin(&least, value);
#else
  std::uint32_t seen = __atomic_load_n(&least, __ATOMIC_RELAXED);
  while (seen > value && !__atomic_compare_exchange_n(
                             &least, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

/// A warp of a block of the host. What its members return is the same for all of its threads.
template <class Thread>
class HostBlockWarp {
 public:
  HostBlockWarp(Thread* threads, std::uint32_t number, bool backwards)
      : threads_(threads), number_(number), backwards_(backwards) {}
  std::uint32_t number() const { return number_; }
  /// Calls phase(number, thread) for every thread.
  template <class Phase>
  void each(Phase phase) {
    each_of(kWarpThreads, backwards_, [&](std::uint32_t i) { phase(i, threads_[i]); });
  }
  /// value(thread) becomes the sum over the threads before it. Returns that over all.
  template <class Value>
  auto sum_before(Value value) {
    std::remove_reference_t<decltype(value(threads_[0]))> sum = 0;
    for (std::uint32_t i = 0; i < kWarpThreads; ++i) {
      const auto mine = value(threads_[i]);
      value(threads_[i]) = sum;
      sum += mine;
    }
    return sum;
  }
  template <class Value>
  std::uint32_t largest(Value value) {
    std::uint32_t of_all = 0;
    for (std::uint32_t i = 0; i < kWarpThreads; ++i) {
      of_all = larger(of_all, value(threads_[i]));
    }
    return of_all;
  }
  template <class Test>
  bool any(Test test) {
    bool found = false;
    for (std::uint32_t i = 0; i < kWarpThreads; ++i) {
      found = test(threads_[i]) || found;
    }
    return found;
  }
  /// What phase() returns, which one thread calls.
  template <class Phase>
  std::uint32_t one(Phase phase) {
    return phase();
  }

 private:
  Thread* threads_;
  std::uint32_t number_;
  bool backwards_;
};

/// A block of the host: `kThreads` threads, and memory that they share.
template <class Thread, class Shared, std::uint32_t kThreads>
class HostBlock {
 public:
  HostBlock(std::uint32_t number, bool backwards)
      : threads_(kThreads), number_(number), backwards_(backwards) {
    std::memset(static_cast<void*>(&shared_), 0xa5, sizeof shared_);  // nobody relies on zeros
  }
  std::uint32_t number() const { return number_; }
  Shared& shared() { return shared_; }
  /// Calls phase(number, thread) for every thread.
  template <class Phase>
  void each(Phase phase) {
    each_of(kThreads, backwards_, [&](std::uint32_t i) { phase(i, threads_[i]); });
  }
  /// Calls phase(warp) for every warp.
  template <class Phase>
  void warps(Phase phase) {
    each_of(kThreads / kWarpThreads, backwards_, [&](std::uint32_t number) {
      HostBlockWarp<Thread> warp(&threads_[number * kWarpThreads], number, backwards_);
      phase(warp);
    });
  }

 private:
  std::vector<Thread> threads_;
  Shared shared_;
  std::uint32_t number_;
  bool backwards_;
};

/// The grid of the host.
template <class Thread, class Shared, std::uint32_t kThreads>
class HostGrid {
 public:
  HostGrid(std::uint32_t blocks, bool backwards) : blocks_(blocks), backwards_(backwards) {}
  std::uint32_t size() const { return blocks_; }
  /// Calls phase(block) for every block. What a block's threads and its shared memory hold is lost.
  template <class Phase>
  void blocks(Phase phase) {
    each_of(blocks_, backwards_, [&](std::uint32_t number) {
      const auto block = std::make_unique<HostBlock<Thread, Shared, kThreads>>(number, backwards_);
      phase(*block);
    });
  }
  /// Calls phase() in one thread.
  template <class Phase>
  void one(Phase phase) {
    phase();
  }

 private:
  std::uint32_t blocks_;
  bool backwards_;
};

#ifdef __CUDACC__
template <class Thread>
class DeviceBlockWarp {
 public:
  __device__ explicit DeviceBlockWarp(Thread& thread) : thread_(thread) {}
  __device__ std::uint32_t number() const { return threadIdx.x / kWarpThreads; }
  template <class Phase>
  __device__ void each(Phase phase) {
    phase(threadIdx.x % kWarpThreads, thread_);
    __syncwarp();
  }
  template <class Value>
  __device__ auto sum_before(Value value) {
    const auto mine = value(thread_);
    auto sum = mine;
    for (std::uint32_t distance = 1; distance < kWarpThreads; distance *= 2) {
      const auto other = __shfl_up_sync(0xffffffff, sum, distance);
      sum += threadIdx.x % kWarpThreads >= distance ? other : 0;
    }
    value(thread_) = sum - mine;
    return __shfl_sync(0xffffffff, sum, kWarpThreads - 1);
  }
  template <class Value>
  __device__ std::uint32_t largest(Value value) {
    return largest_in_warp(value(thread_));
  }
  template <class Test>
  __device__ bool any(Test test) {
    return __any_sync(0xffffffff, test(thread_)) != 0;
  }
  template <class Phase>
  __device__ std::uint32_t one(Phase phase) {
    std::uint32_t value = 0;
    if (threadIdx.x % kWarpThreads == 0) {
      value = phase();
    }
    return __shfl_sync(0xffffffff, value, 0);
  }

 private:
  Thread& thread_;
};

template <class Thread, class Shared, std::uint32_t kThreads>
class DeviceBlock {
 public:
  __device__ std::uint32_t number() const { return blockIdx.x; }
  /// A variable of this function, so that every caller knows which kind of memory it is.
  __device__ static Shared& shared() {
    __shared__ Shared memory;
    return memory;
  }
  template <class Phase>
  __device__ void each(Phase phase) {
    phase(threadIdx.x, thread_);
    __syncthreads();
  }
  template <class Phase>
  __device__ void warps(Phase phase) {
    DeviceBlockWarp<Thread> warp(thread_);
    phase(warp);
    __syncthreads();
  }

 private:
  Thread thread_;
};

/// The grid of a kernel with a single phase: its end is what all wait for.
template <class Thread, class Shared, std::uint32_t kThreads>
class OnePhaseGrid {
 public:
  __device__ std::uint32_t size() const { return gridDim.x; }
  template <class Phase>
  __device__ void blocks(Phase phase) {
    DeviceBlock<Thread, Shared, kThreads> block;
    phase(block);
  }
};

template <class Thread, class Shared, std::uint32_t kThreads>
class DeviceGrid {
 public:
  /// `arrived` is 0 when its memory is made, and this grid's alone until the kernel ends.
  __device__ explicit DeviceGrid(std::uint32_t& arrived) : arrived_(arrived) {}
  __device__ std::uint32_t size() const { return gridDim.x; }
  template <class Phase>
  __device__ void blocks(Phase phase) {
    DeviceBlock<Thread, Shared, kThreads> block;
    phase(block);
    wait_for_all();
  }
  template <class Phase>
  __device__ void one(Phase phase) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      phase();
    }
    wait_for_all();
  }

 private:
  /// The first block adds so much that the highest bit changes when all have come.
  __device__ void wait_for_all() {
    constexpr std::uint32_t kHighest = 0x80000000;
    __syncthreads();
    if (threadIdx.x == 0) {
      const std::uint32_t mine = blockIdx.x == 0 ? kHighest - (gridDim.x - 1) : 1;
      __threadfence();
      const std::uint32_t before = atomicAdd(&arrived_, mine);
      volatile std::uint32_t* now = &arrived_;
      while (((before ^ *now) & kHighest) == 0) {
      }
      __threadfence();
    }
    __syncthreads();
  }

  std::uint32_t& arrived_;
};
#endif

}  // namespace aiacc
