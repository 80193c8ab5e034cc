#include "csrc/kernels/gpu/device_selector.h"

#include <algorithm>

namespace aiacc {

DeviceSelector::DeviceSelector(const CudaDriver& driver, const DeviceImage& image)
    : module_(driver, image), kernel_(module_.find(kSelectKernel, kSelectThreads)) {}

void DeviceSelector::select(CudaStream stream, const SelectPlan& plan) const {
  SelectPlan argument = plan;
  const unsigned blocks = std::min(argument.tiles, kernel_.resident);
  module_.launch_together(kernel_, stream, blocks, kSelectThreads, argument);
}

}  // namespace aiacc
