#include "csrc/kernels/gpu/optim/lamb_update.h"

#include <algorithm>
#include <cmath>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/optim/lamb_body.h"
#include "csrc/kernels/gpu/optim/tensor_chunks.h"

namespace aiacc {
namespace {

using Grid = HostGrid<OptimThread, LambShared, kOptimThreads>;

template <class Batch>
void first_on_host(const Batch& batch, std::uint32_t blocks, bool backwards) {
  Grid(blocks, backwards).blocks([&](auto& block) { lamb_first_share(block, batch); });
}

template <class Batch>
void second_on_host(const Batch& batch, std::uint32_t blocks, bool backwards) {
  Grid(blocks, backwards).blocks([&](auto& block) { lamb_second_share(block, batch, blocks); });
}

}  // namespace

const OptimKernels<SmallLambBatch> kSmallLambKernels = {"aiacc_lamb_norms",
                                                        "aiacc_lamb_update",
                                                        &first_on_host<SmallLambBatch>,
                                                        &second_on_host<SmallLambBatch>};
const OptimKernels<LargeLambBatch> kLargeLambKernels = {"aiacc_lamb_norms_large",
                                                        "aiacc_lamb_update_large",
                                                        &first_on_host<LargeLambBatch>,
                                                        &second_on_host<LargeLambBatch>};

template <int kCapacity>
void plan_lamb(const LambTensor* tensors,
               std::size_t count,
               const LambOptions& options,
               const LambMemory& memory,
               unsigned resident,
               LambBatch<kCapacity>& batch) {
  AIACC_CHECK(count <= static_cast<std::size_t>(kCapacity));
  batch.log_beta1 = std::log(options.beta1);
  batch.log_beta2 = std::log(options.beta2);
  TensorChunks chunks;
  batch.items = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const LambTensor& tensor = tensors[i];
    if (tensor.count == 0) {
      continue;
    }
    const bool is_aligned = check_tensor(
        "a step of LAMB", i, {tensor.weights, tensor.gradient, tensor.mean, tensor.square});
    LambCorrections corrections = {1, 1};
    if (options.bias_correction && tensor.steps_on_device == nullptr) {
      corrections = lamb_corrections(tensor.steps, batch.log_beta1, batch.log_beta2);
    }
    batch.item[batch.items++] = {tensor.weights,
                                 tensor.gradient,
                                 tensor.mean,
                                 tensor.square,
                                 tensor.steps_on_device,
                                 corrections.mean_factor,
                                 corrections.root_factor,
                                 tensor.count,
                                 chunks.take(tensor.count),
                                 is_aligned ? 1U : 0U};
  }
  batch.chunks = chunks.taken();
  batch.norm_blocks = std::min({batch.chunks, resident, kMostOptimBlocks});
  batch.needs = kFirstKernel | (options.adapt ? kSecondKernel : 0);
  batch.lr = memory.lr;
  batch.clip = memory.clip;
  batch.sums = static_cast<SquareSums*>(memory.workspace);
  batch.options = options;
}

template void plan_lamb(const LambTensor*,
                        std::size_t,
                        const LambOptions&,
                        const LambMemory&,
                        unsigned,
                        SmallLambBatch&);
template void plan_lamb(const LambTensor*,
                        std::size_t,
                        const LambOptions&,
                        const LambMemory&,
                        unsigned,
                        LargeLambBatch&);

}  // namespace aiacc
