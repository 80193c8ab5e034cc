#include "csrc/kernels/gpu/optim/device_factors.h"

#include <algorithm>

namespace aiacc {

DeviceFactors::DeviceFactors(const CudaDriver& driver, const DeviceImage& image)
    : module_(driver, image) {
  for (const FactorKernel& kernel : factor_kernels()) {
    kernels_.push_back(module_.find(kernel.name, kFactorThreads));
  }
}

void DeviceFactors::run(CudaStream stream,
                        FactorWork work,
                        DataType dtype,
                        const std::vector<FactorStack>& stacks) {
  const DeviceKernel& kernel = kernels_[choose_factor_kernel(work, dtype)];
  for (std::size_t at = 0; at < stacks.size(); at += FactorBatch::kStacks) {
    plan_factors(dtype, &stacks[at], std::min(stacks.size() - at, FactorBatch::kStacks), batch_);
    if (batch_.chunks != 0) {
      // As many as run at a time: each has an equal share, so there is no last wave of a few.
      module_.launch(
          kernel, stream, std::min(batch_.chunks, kernel.resident), kFactorThreads, batch_);
    }
  }
}

}  // namespace aiacc
