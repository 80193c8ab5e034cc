// The kernels of the fake driver.

#include <memory>

#include "csrc/kernels/gpu/add_pairs.h"
#include "csrc/kernels/gpu/block_code.h"
#include "csrc/kernels/gpu/optim/factor_packing.h"
#include "csrc/kernels/gpu/optim/lamb_update.h"
#include "csrc/kernels/gpu/optim/lars_update.h"
#include "csrc/kernels/gpu/selection.h"
#include "tests/cpp/support/fakes/fake_cuda.h"

namespace aiacc {
namespace {

/// A launch: copies its argument at once, and runs the twin of the kernel later.
template <class Argument, class Run>
auto run_later(Run run) {
  return [run](const void* argument, std::uint32_t blocks) -> std::function<void()> {
    auto copy = std::make_shared<Argument>(*static_cast<const Argument*>(argument));
    return [run, copy, blocks] { run(*copy, blocks); };
  };
}

}  // namespace

template <class Batch>
void FakeCuda::add_step_kernels(const OptimKernels<Batch>& kernels) {
  const auto twin = [](auto run) {
    return [run](const Batch& batch, std::uint32_t blocks) { run(batch, blocks, false); };
  };
  kernels_[kernels.first_name] = {kOptimThreads, run_later<Batch>(twin(kernels.first))};
  kernels_[kernels.second_name] = {kOptimThreads, run_later<Batch>(twin(kernels.second))};
}

void FakeCuda::fill_kernels() {
  for (const CopyKernel& kernel : copy_kernels()) {
    kernels_[kernel.name] = {kCopyThreads, run_later<SmallCopyBatch>(kernel.run_small)};
    kernels_[kernel.large_name] = {kCopyThreads, run_later<LargeCopyBatch>(kernel.run_large)};
  }
  for (const BlockCodeKernels& kernels : block_code_kernels()) {
    const auto twin = [](auto run) {
      return [run](const auto& plan, std::uint32_t blocks) {
        run(plan, blocks * (kBlockCodeThreads / kWarpThreads), false);
      };
    };
    kernels_[kernels.encode_name] = {kBlockCodeThreads,
                                     run_later<BlockEncoding>(twin(kernels.encode))};
    kernels_[kernels.decode_name] = {kBlockCodeThreads,
                                     run_later<BlockDecoding>(twin(kernels.decode))};
  }
  for (const SelectKernel& kernel : select_kernels()) {
    kernels_[kernel.name] = {
        kSelectThreads,
        run_later<SelectPlan>([run = kernel.run](const SelectPlan& plan, std::uint32_t blocks) {
          run(plan, blocks, false);
        })};
  }
  kernels_[kAddPairsKernel] = {
      kAddPairsThreads, run_later<PairAddition>([](const PairAddition& plan, std::uint32_t blocks) {
        const std::uint32_t threads = blocks * kAddPairsThreads;
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
          add_pairs_share(plan, thread, threads);
        }
      })};
  for (const FactorKernel& kernel : factor_kernels()) {
    kernels_[kernel.name] = {
        kFactorThreads,
        run_later<FactorBatch>([run = kernel.run](const FactorBatch& batch, std::uint32_t blocks) {
          run(batch, blocks, false);
        })};
  }
  add_step_kernels(kSmallLambKernels);
  add_step_kernels(kLargeLambKernels);
  add_step_kernels(kSmallLarsKernels);
  add_step_kernels(kLargeLarsKernels);
}

}  // namespace aiacc
