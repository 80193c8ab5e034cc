#include "csrc/kernels/gpu/optim/lars_update.h"

#include <algorithm>
#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/optim/lars_body.h"
#include "csrc/kernels/gpu/optim/tensor_chunks.h"

namespace aiacc {
namespace {

using Grid = HostGrid<OptimThread, LarsShared, kOptimThreads>;

template <class Batch>
void norms_on_host(const Batch& batch, std::uint32_t blocks, bool backwards) {
  Grid(blocks, backwards).blocks([&](auto& block) { lars_norms_share(block, batch); });
}

template <class Batch>
void update_on_host(const Batch& batch, std::uint32_t blocks, bool backwards) {
  Grid(blocks, backwards).blocks([&](auto& block) { lars_update_share(block, batch, blocks); });
}

}  // namespace

const OptimKernels<SmallLarsBatch> kSmallLarsKernels = {"aiacc_lars_norms",
                                                        "aiacc_lars_update",
                                                        &norms_on_host<SmallLarsBatch>,
                                                        &update_on_host<SmallLarsBatch>};
const OptimKernels<LargeLarsBatch> kLargeLarsKernels = {"aiacc_lars_norms_large",
                                                        "aiacc_lars_update_large",
                                                        &norms_on_host<LargeLarsBatch>,
                                                        &update_on_host<LargeLarsBatch>};

template <int kCapacity>
void plan_lars(const LarsTensor* tensors,
               std::size_t count,
               const LarsOptions& options,
               const float* lr,
               void* workspace,
               unsigned resident,
               LarsBatch<kCapacity>& batch) {
  AIACC_CHECK(count <= static_cast<std::size_t>(kCapacity));
  TensorChunks chunks;
  batch.items = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const LarsTensor& tensor = tensors[i];
    if (tensor.count == 0) {
      continue;
    }
    if (tensor.momentum == nullptr && options.momentum != 0) {
      throw Error(Code::kInvalidArgument,
                  "[kernels] tensor " + std::to_string(i) +
                      " of a step of LARS with momentum=" + std::to_string(options.momentum) +
                      " has no memory for its momentum (expected as much as for the weights)");
    }
    const bool is_aligned =
        check_tensor("a step of LARS", i, {tensor.weights, tensor.gradient, tensor.momentum});
    batch.item[batch.items++] = {tensor.weights,
                                 tensor.gradient,
                                 tensor.momentum,
                                 tensor.count,
                                 chunks.take(tensor.count),
                                 is_aligned ? 1U : 0U};
  }
  batch.chunks = chunks.taken();
  batch.norm_blocks = std::min({batch.chunks, resident, kMostOptimBlocks});
  batch.needs = (options.adapt ? kFirstKernel : 0) | kSecondKernel;
  batch.lr = lr;
  batch.sums = static_cast<SquareSums*>(workspace);
  batch.options = options;
}

template void plan_lars(const LarsTensor*,
                        std::size_t,
                        const LarsOptions&,
                        const float*,
                        void*,
                        unsigned,
                        SmallLarsBatch&);
template void plan_lars(const LarsTensor*,
                        std::size_t,
                        const LarsOptions&,
                        const float*,
                        void*,
                        unsigned,
                        LargeLarsBatch&);

}  // namespace aiacc
