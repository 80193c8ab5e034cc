#include "csrc/kernels/gpu/optim/device_lamb.h"

namespace aiacc {

DeviceLamb::DeviceLamb(const CudaDriver& driver, const DeviceImage& image)
    : launcher_(driver, image, kSmallLambKernels, kLargeLambKernels) {}

void DeviceLamb::step(CudaStream stream,
                      const std::vector<LambTensor>& tensors,
                      const LambOptions& options,
                      const LambMemory& memory) {
  launcher_.launch(stream,
                   tensors.size(),
                   [&](std::size_t at, std::size_t count, unsigned resident, auto& batch) {
                     plan_lamb(tensors.data() + at, count, options, memory, resident, batch);
                   });
}

}  // namespace aiacc
