#include "csrc/core/execution/gpu/device_resources.h"

#include <utility>

namespace aiacc {

DeviceTools::DeviceTools(std::shared_ptr<Device> opened, bool kernels, bool check)
    : device(std::move(opened)), pool(DevicePool::make(device)) {
  if (kernels) {
    const Device::Scope scope(*device);
    copier = std::make_unique<BatchCopier>(device->driver());
    reports = check ? std::make_unique<ReportPool>(device->driver()) : nullptr;
  }
}

DeviceTools::~DeviceTools() {
  try {
    const Device::Scope scope(*device);
    copier.reset();
    reports.reset();
  } catch (const Error&) {
    // The driver is shutting down, and these with it.
    static_cast<void>(copier.release());
    static_cast<void>(reports.release());
  }
}

}  // namespace aiacc
