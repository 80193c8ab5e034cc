#pragma once

#include <memory>
#include <mutex>

#include "csrc/core/unit.h"
#include "csrc/cuda/device_pool.h"
#include "csrc/kernels/batch_copier.h"

namespace aiacc {

/// What the units of one GPU share.
struct DeviceTools {
  /// `kernels`: load those that pack and unpack.
  DeviceTools(std::shared_ptr<Device> opened, bool kernels);
  ~DeviceTools();
  DeviceTools(const DeviceTools&) = delete;
  DeviceTools& operator=(const DeviceTools&) = delete;

  std::shared_ptr<Device> device;
  std::shared_ptr<DevicePool> pool;
  std::mutex copier_mutex;
  std::unique_ptr<BatchCopier> copier;  ///< null without kernels
};

/// Queues one unit of tensors on a GPU on its lane's stream, with the engine of its GPUs: pack
/// with the prescale, operation, unpack with what is to be done to the sum; one kernel each. A single
/// tensor is worked on in place where the engine can. A piece without memory stands for zeros, and
/// its result is dropped.
/// Neither waits for the inputs nor marks the end: see DevicePath. Needs a Device::Scope. Throws what
/// engine and CUDA throw.
void execute_device_unit(const Unit& unit, int lane, DeviceEngine& engine, DeviceTools& tools);

}  // namespace aiacc
