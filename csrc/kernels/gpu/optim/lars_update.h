#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/kernels/gpu/optim/optim_kernels.h"
#include "csrc/kernels/gpu/optim/tensor_shares.h"
#include "csrc/kernels/lars.h"

namespace aiacc {

/// A tensor as the kernels read it.
struct LarsItem {
  float* weights;
  const float* gradient;
  float* momentum;  ///< or null
  std::uint64_t count;
  std::uint32_t first_chunk;
  std::uint32_t is_aligned;  ///< all three, for accesses of 16 bytes
};

/// The only argument of both kernels: everything travels with the launch, so that a CUDA graph may
/// hold it. `kCapacity` is chosen by the limit of arguments: 4 KiB, or 32764 bytes.
template <int kCapacity>
struct LarsBatch {
  static constexpr std::size_t kTensors = kCapacity;
  std::uint32_t items;
  std::uint32_t chunks;
  std::uint32_t norm_blocks;  ///< of the launch that has left `sums`
  std::uint32_t needs;        ///< kFirstKernel, kSecondKernel
  const float* lr;            ///< in memory of the device, instead of the options'; or null
  SquareSums* sums;           ///< of blocks and tensors, see place_of
  LarsOptions options;
  LarsItem item[kCapacity];
};
using SmallLarsBatch = LarsBatch<99>;
using LargeLarsBatch = LarsBatch<816>;
static_assert(sizeof(SmallLarsBatch) <= 4096, "the limit of every driver");
static_assert(sizeof(LargeLarsBatch) <= 32764, "the limit since CUDA 12.1");

/// The first one adds up norms, unless options.adapt is false; the second one updates.
extern const OptimKernels<SmallLarsBatch> kSmallLarsKernels;
extern const OptimKernels<LargeLarsBatch> kLargeLarsKernels;

/// Fills in the argument of a launch for `count` tensors, at most its capacity; those without
/// elements are left out. `workspace`: optim_workspace_bytes. `resident`: blocks of the kernel of
/// norms that run at a time. `lr`: in memory of the device, or null. Pure. Throws
/// Error(kInvalidArgument) if an address is no multiple of 4, for a momentum without memory, and
/// beyond 2^31 chunks.
template <int kCapacity>
void plan_lars(const LarsTensor* tensors,
               std::size_t count,
               const LarsOptions& options,
               const float* lr,
               void* workspace,
               unsigned resident,
               LarsBatch<kCapacity>& batch);

extern template void plan_lars(const LarsTensor*,
                               std::size_t,
                               const LarsOptions&,
                               const float*,
                               void*,
                               unsigned,
                               SmallLarsBatch&);
extern template void plan_lars(const LarsTensor*,
                               std::size_t,
                               const LarsOptions&,
                               const float*,
                               void*,
                               unsigned,
                               LargeLarsBatch&);

}  // namespace aiacc
