#include "csrc/bindings/optim/optim_device.h"

#include <map>
#include <memory>
#include <mutex>

#include "csrc/base/error.h"
#include "csrc/cuda/device.h"

namespace aiacc {

void with_optim_device(int ordinal, const std::function<void(OptimDevice&)>& use) {
  struct Loaded {
    std::shared_ptr<Device> device;
    std::unique_ptr<OptimDevice> kernels;
  };
  static std::mutex mutex;
  // Until the process ends: the driver may be gone before what is destroyed at its end.
  static auto* const all = new std::map<int, Loaded>;
  const std::lock_guard lock(mutex);
  Loaded& found = (*all)[ordinal];
  if (found.device == nullptr) {
    found.device = Device::open(process_cuda_driver(), ordinal);
  }
  const Device::Scope scope(*found.device);
  if (found.kernels == nullptr) {
    found.kernels = std::make_unique<OptimDevice>(found.device->driver());
  }
  use(*found.kernels);
}

std::string optim_problem(int ordinal) {
  try {
    with_optim_device(ordinal, [](OptimDevice&) {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace aiacc
