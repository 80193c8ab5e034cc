#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "csrc/core/execution/gpu/report_pool.h"
#include "csrc/core/execution/unit.h"
#include "csrc/cuda/device_pool.h"
#include "csrc/kernels/batch_copier.h"

namespace aiacc {

/// What the units of one GPU share.
struct DeviceTools {
  /// `kernels`: load those that pack and unpack. `check`: they shall look at inputs.
  DeviceTools(std::shared_ptr<Device> opened, bool kernels, bool check = false);
  ~DeviceTools();
  DeviceTools(const DeviceTools&) = delete;
  DeviceTools& operator=(const DeviceTools&) = delete;

  std::shared_ptr<Device> device;
  std::shared_ptr<DevicePool> pool;
  std::mutex copier_mutex;
  std::unique_ptr<BatchCopier> copier;  ///< null without kernels
  std::unique_ptr<ReportPool> reports;  ///< null without a check by kernels
  /// Where the last unit is over that used a buffer of the engine, by its address. The launching
  /// thread's.
  std::unordered_map<const void*, Mark> buffer_users;
};

/// Makes a stream wait for who wrote a unit's tensors.
using WaitForInputs = std::function<void(const Unit& unit, CudaStream stream)>;

}  // namespace aiacc
