#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/gpu/optim/optim_kernels.h"
#include "csrc/kernels/gpu/optim/tensor_shares.h"

namespace aiacc {

/// The options of aiacc.optim.LAMB, whose docstrings say what they mean.
struct LambOptions {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double least_ratio = 0;
  double largest_ratio = 0;
  bool bias_correction = true;
  bool adapt = true;  ///< else the ratio is 1
};

/// Float32 in memory of a device, none of which overlap.
struct LambTensor {
  float* weights;
  const float* gradient;
  float* mean;    ///< of gradients
  float* square;  ///< mean of their squares
  /// The number of the step, from 1 on, in memory of the device; null: it is `steps`.
  const float* steps_on_device;
  double steps;
  std::uint64_t count;
};

/// A tensor as the kernels read it.
struct LambItem {
  float* weights;
  const float* gradient;
  float* mean;
  float* square;
  const float* steps;  ///< or null: the corrections are
  float mean_factor;   ///< 1 / (1 - beta1^steps)
  float root_factor;   ///< 1 / sqrt(1 - beta2^steps)
  std::uint64_t count;
  std::uint32_t first_chunk;
  std::uint32_t is_aligned;  ///< all four, for accesses of 16 bytes
};

/// The only argument of both kernels, as LarsBatch.
template <int kCapacity>
struct LambBatch {
  static constexpr std::size_t kTensors = kCapacity;
  std::uint32_t items;
  std::uint32_t chunks;
  std::uint32_t norm_blocks;  ///< of the launch that has left `sums`
  std::uint32_t needs;        ///< kFirstKernel, kSecondKernel
  const float* lr;            ///< in memory of the device, instead of the options'; or null
  const float* clip;          ///< in memory of the device: a factor of gradients; or null: 1
  SquareSums* sums;           ///< of blocks and tensors, see place_of
  double log_beta1;
  double log_beta2;
  LambOptions options;
  LambItem item[kCapacity];
};
using SmallLambBatch = LambBatch<62>;
using LargeLambBatch = LambBatch<510>;
static_assert(sizeof(SmallLambBatch) <= 4096, "the limit of every driver");
static_assert(sizeof(LargeLambBatch) <= 32764, "the limit since CUDA 12.1");

/// The first one moves the means and adds up the norms of weights and updates; the second one
/// updates. If options.adapt is false, the first one does it all.
extern const OptimKernels<SmallLambBatch> kSmallLambKernels;
extern const OptimKernels<LargeLambBatch> kLargeLambKernels;

/// What a step reads of memory of the device, beside tensors.
struct LambMemory {
  const float* lr;    ///< instead of the options'; or null
  const float* clip;  ///< a factor of gradients; or null: 1
  void* workspace;    ///< optim_workspace_bytes
};

/// Fills in the argument of a launch for `count` tensors, at most its capacity; those without
/// elements are left out. `resident`: blocks of the first kernel that run at a time. Pure. Throws
/// Error(kInvalidArgument) if an address is no multiple of 4, and beyond 2^31 chunks.
template <int kCapacity>
void plan_lamb(const LambTensor* tensors,
               std::size_t count,
               const LambOptions& options,
               const LambMemory& memory,
               unsigned resident,
               LambBatch<kCapacity>& batch);

extern template void plan_lamb(const LambTensor*,
                               std::size_t,
                               const LambOptions&,
                               const LambMemory&,
                               unsigned,
                               SmallLambBatch&);
extern template void plan_lamb(const LambTensor*,
                               std::size_t,
                               const LambOptions&,
                               const LambMemory&,
                               unsigned,
                               LargeLambBatch&);

}  // namespace aiacc
