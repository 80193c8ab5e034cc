#include "csrc/kernels/gpu/device_selector.h"

#include <algorithm>

namespace aiacc {

DeviceSelector::DeviceSelector(const CudaDriver& driver, const DeviceImage& image)
    : module_(driver, image) {
  for (const SelectKernel& kernel : select_kernels()) {
    kernels_.push_back(module_.find(kernel.name, kSelectThreads));
    resident_ = std::min(resident_, kernels_.back().resident);
  }
}

void DeviceSelector::select(CudaStream stream, const SelectPlan& plan) const {
  SelectPlan argument = plan;
  const unsigned blocks = select_blocks(argument, resident_);
  for (std::size_t i = 0; i < kernels_.size(); ++i) {
    if (select_kernels()[i].together) {
      module_.launch_together(kernels_[i], stream, blocks, kSelectThreads, argument);
    } else {
      module_.launch(kernels_[i], stream, blocks, kSelectThreads, argument);
    }
  }
}

}  // namespace aiacc
