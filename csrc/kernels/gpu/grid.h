#pragma once

// As warp.h, for kernels whose blocks work together: all blocks run a phase, then all wait for one
// another. On the device that needs a cooperative launch. What decides about the course of a kernel
// is read from memory that only `one` writes, so that no block that is ahead changes it for those
// behind.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "csrc/kernels/gpu/warp.h"
#include "csrc/kernels/host_device.h"

namespace aiacc {

// Of counters that threads share: what was there before, where it matters.
AIACC_HOST_DEVICE inline std::uint32_t add_to(std::uint32_t& counter, std::uint32_t more) {
#ifdef __CUDA_ARCH__
  return atomicAdd(&counter, more);
#else
  const std::uint32_t before = counter;
  counter += more;
  return before;
#endif
}
AIACC_HOST_DEVICE inline void raise_to(std::uint32_t& largest, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  atomicMax(&largest, value);
#else
  largest = larger(largest, value);
#endif
}
AIACC_HOST_DEVICE inline void lower_to(std::uint32_t& least, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  atomicMin(&least, value);
#else
  least = value < least ? value : least;
#endif
}

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
    for (std::uint32_t i = 0; i < kThreads; ++i) {
      const std::uint32_t number = backwards_ ? kThreads - 1 - i : i;
      phase(number, threads_[number]);
    }
  }
  /// value(thread) becomes the sum over the threads before it in its warp, total(thread) that of
  /// the whole warp.
  template <class Value, class Total>
  void sum_before(Value value, Total total) {
    for (std::uint32_t warp = 0; warp < kThreads; warp += kWarpThreads) {
      std::uint64_t sum = 0;
      for (std::uint32_t i = warp; i < warp + kWarpThreads; ++i) {
        const std::uint64_t mine = value(threads_[i]);
        value(threads_[i]) = sum;
        sum += mine;
      }
      for (std::uint32_t i = warp; i < warp + kWarpThreads; ++i) {
        total(threads_[i]) = sum;
      }
    }
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
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      const auto block = std::make_unique<HostBlock<Thread, Shared, kThreads>>(
          backwards_ ? blocks_ - 1 - i : i, backwards_);
      phase(*block);
    }
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
  template <class Value, class Total>
  __device__ void sum_before(Value value, Total total) {
    const std::uint64_t mine = value(thread_);
    std::uint64_t sum = mine;
    for (std::uint32_t distance = 1; distance < kWarpThreads; distance *= 2) {
      const std::uint64_t other = __shfl_up_sync(0xffffffff, sum, distance);
      sum += threadIdx.x % kWarpThreads >= distance ? other : 0;
    }
    value(thread_) = sum - mine;
    total(thread_) = __shfl_sync(0xffffffff, sum, kWarpThreads - 1);
  }

 private:
  Thread thread_;
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
