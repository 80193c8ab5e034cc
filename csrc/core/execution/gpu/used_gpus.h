#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/cuda/device.h"

namespace aiacc {

/// The GPUs that this rank uses, opened when they are first needed, and what units on each need:
/// its `Tools`.
///
/// Threads: any. Opening a GPU and loading kernels for it can take many seconds: only who needs
/// them waits for that. `loaded`, which the loop thread calls, never does.
template <class Tools>
class UsedGpus {
 public:
  struct Gpu {
    std::shared_ptr<Device> device;
    std::unique_ptr<Tools> tools;  ///< null before `tools_of`
  };
  /// -1: the device that is proposed.
  using Open = std::function<std::shared_ptr<Device>(int ordinal)>;
  /// Called in a Device::Scope, and so is the destructor of what it gives.
  using Load = std::function<std::unique_ptr<Tools>(const std::shared_ptr<Device>& device)>;

  UsedGpus(Open open, Load load) : open_(std::move(open)), load_(std::move(load)) {}
  ~UsedGpus() {
    for (auto& [ordinal, gpu] : gpus_) {
      try {
        const Device::Scope scope(*gpu.device);
        gpu.tools.reset();
      } catch (const Error&) {
        static_cast<void>(gpu.tools.release());  // The driver is shutting down, and this with it.
      }
    }
  }
  UsedGpus(const UsedGpus&) = delete;
  UsedGpus& operator=(const UsedGpus&) = delete;

  /// The one of that number; -1: the first one that was used, or a proposal. None goes before the
  /// end. Throws what Open throws.
  Gpu& at(int ordinal) {
    if (Gpu* known = find(ordinal)) {
      return *known;
    }
    const std::lock_guard loading(loading_);
    if (Gpu* known = find(ordinal)) {
      return *known;
    }
    const std::shared_ptr<Device> device = open_(ordinal);
    const std::lock_guard lock(mutex_);
    first_ = gpus_.empty() ? device->ordinal() : first_;
    return gpus_.emplace(device->ordinal(), Gpu{device, nullptr}).first->second;
  }

  /// Throws what Load throws.
  Tools& tools_of(Gpu& gpu) {
    if (Tools* known = find_tools(gpu)) {
      return *known;
    }
    const std::lock_guard loading(loading_);
    if (gpu.tools == nullptr) {
      const Device::Scope scope(*gpu.device);
      std::unique_ptr<Tools> tools = load_(gpu.device);
      const std::lock_guard lock(mutex_);
      gpu.tools = std::move(tools);
    }
    return *gpu.tools;
  }

  /// Those with tools.
  std::vector<Gpu*> loaded() {
    const std::lock_guard lock(mutex_);
    std::vector<Gpu*> loaded;
    for (auto& [ordinal, gpu] : gpus_) {
      if (gpu.tools != nullptr) {
        loaded.push_back(&gpu);
      }
    }
    return loaded;
  }

 private:
  Gpu* find(int ordinal) {
    const std::lock_guard lock(mutex_);
    const auto known = gpus_.find(ordinal < 0 ? first_ : ordinal);
    return known == gpus_.end() ? nullptr : &known->second;
  }
  Tools* find_tools(const Gpu& gpu) {
    const std::lock_guard lock(mutex_);
    return gpu.tools.get();
  }

  const Open open_;
  const Load load_;
  std::mutex loading_;  ///< held for as long as it takes; before the other one
  std::mutex mutex_;    ///< guards what follows
  std::map<int, Gpu> gpus_;
  int first_ = -1;
};

}  // namespace aiacc
