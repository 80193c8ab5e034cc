#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "csrc/core/execution/gpu/report_pool.h"
#include "csrc/cuda/device_pool.h"
#include "csrc/engines/device_coding.h"
#include "csrc/kernels/batch_copier.h"

namespace aiacc {

/// What the units share that are queued on one GPU.
struct DeviceResources {
  /// Loads kernels. `checks`: they shall look at inputs. Needs a Device::Scope, here and in the
  /// destructor.
  DeviceResources(std::shared_ptr<Device> opened, bool checks)
      : device(std::move(opened)),
        pool(DevicePool::make(device)),
        copier(std::make_unique<BatchCopier>(device->driver())),
        reports(checks ? std::make_unique<ReportPool>(device->driver()) : nullptr) {}

  /// Made when a unit first travels coded: loads kernels, and may wait for the GPU. The launching
  /// thread's.
  DeviceCoding& coding() {
    if (coding_ == nullptr) {
      coding_ = std::make_unique<DeviceCoding>(device->driver(), pool);
    }
    return *coding_;
  }

  std::shared_ptr<Device> device;
  std::shared_ptr<DevicePool> pool;
  std::mutex copier_mutex;
  std::unique_ptr<BatchCopier> copier;
  std::unique_ptr<ReportPool> reports;  ///< null unless they look at inputs
  /// By the address of a buffer of the engine: the mark after the last unit that used it. The
  /// launching thread's.
  std::unordered_map<const void*, Mark> buffer_users;

 private:
  std::unique_ptr<DeviceCoding> coding_;
};

}  // namespace aiacc
