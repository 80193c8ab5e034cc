#include "csrc/kernels/gpu/optim/device_lars.h"

namespace aiacc {

DeviceLars::DeviceLars(const CudaDriver& driver, const DeviceImage& image)
    : launcher_(driver, image, kSmallLarsKernels, kLargeLarsKernels) {}

void DeviceLars::step(CudaStream stream,
                      const std::vector<LarsTensor>& tensors,
                      const LarsOptions& options,
                      const float* lr,
                      void* workspace) {
  launcher_.launch(stream,
                   tensors.size(),
                   [&](std::size_t at, std::size_t count, unsigned resident, auto& batch) {
                     plan_lars(tensors.data() + at, count, options, lr, workspace, resident, batch);
                   });
}

}  // namespace aiacc
