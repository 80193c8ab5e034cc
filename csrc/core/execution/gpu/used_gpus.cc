#include "csrc/core/execution/gpu/used_gpus.h"

#include <utility>

namespace aiacc {

UsedGpus::~UsedGpus() {
  for (auto& [ordinal, gpu] : gpus_) {
    try {
      const Device::Scope scope(*gpu.device);
      gpu.staging.reset();
    } catch (const Error&) {
      static_cast<void>(
          gpu.staging.release());  // The driver is shutting down, and all this with it.
    }
  }
}

UsedGpus::Gpu* UsedGpus::find(int ordinal) {
  const std::lock_guard lock(mutex_);
  const auto known = gpus_.find(ordinal < 0 ? first_ : ordinal);
  return known == gpus_.end() ? nullptr : &known->second;
}

UsedGpus::Gpu& UsedGpus::at(int ordinal) {
  if (Gpu* known = find(ordinal)) {
    return *known;
  }
  const std::lock_guard loading(loading_);
  if (Gpu* known = find(ordinal)) {
    return *known;
  }
  const std::shared_ptr<Device> device = setup_.open(ordinal);
  const std::lock_guard lock(mutex_);
  first_ = gpus_.empty() ? device->ordinal() : first_;
  return gpus_.emplace(device->ordinal(), Gpu{device, nullptr, nullptr}).first->second;
}

DeviceTools& UsedGpus::tools_of(Gpu& gpu) {
  {
    const std::lock_guard lock(mutex_);
    if (gpu.tools != nullptr) {
      return *gpu.tools;
    }
  }
  const std::lock_guard loading(loading_);
  if (gpu.tools == nullptr) {
    auto loaded = std::make_shared<DeviceTools>(gpu.device, setup_.kernels, setup_.check);
    const std::lock_guard lock(mutex_);
    gpu.tools = std::move(loaded);
  }
  return *gpu.tools;
}

Staging& UsedGpus::staging_of(Gpu& gpu) {
  const DeviceTools& tools = tools_of(gpu);
  {
    const std::lock_guard lock(mutex_);
    if (gpu.staging != nullptr) {
      return *gpu.staging;
    }
  }
  const std::lock_guard loading(loading_);
  if (gpu.staging == nullptr) {
    auto staging = std::make_unique<Staging>(gpu.device, tools.pool, setup_.lanes);
    const std::lock_guard lock(mutex_);
    gpu.staging = std::move(staging);
    if (aborted_) {
      gpu.staging->abort(*aborted_);
    }
  }
  return *gpu.staging;
}

std::vector<UsedGpus::Gpu*> UsedGpus::staged() {
  const std::lock_guard lock(mutex_);
  std::vector<Gpu*> staged;
  for (auto& [ordinal, gpu] : gpus_) {
    if (gpu.staging != nullptr) {
      staged.push_back(&gpu);
    }
  }
  return staged;
}

void UsedGpus::abort(const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = aborted_ ? aborted_ : status;
  for (auto& [ordinal, gpu] : gpus_) {
    if (gpu.staging != nullptr) {
      gpu.staging->abort(*aborted_);
    }
  }
}

}  // namespace aiacc
