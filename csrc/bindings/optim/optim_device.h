#pragma once

#include <functional>
#include <string>

#include "csrc/kernels/gpu/optim/device_factors.h"
#include "csrc/kernels/gpu/optim/device_lamb.h"
#include "csrc/kernels/gpu/optim/device_lars.h"

namespace aiacc {

/// The kernels of optimizers on a GPU.
struct OptimDevice {
  explicit OptimDevice(const CudaDriver& driver) : factors(driver), lamb(driver), lars(driver) {}
  DeviceFactors factors;
  DeviceLamb lamb;
  DeviceLars lars;
};

/// Calls use(kernels) with the context of a GPU current; one call at a time. Loads the kernels when
/// it is first asked about that GPU. Throws what Device::open, DeviceModule and `use` do.
void with_optim_device(int ordinal, const std::function<void(OptimDevice&)>& use);

/// "" or why there are no kernels of optimizers on a GPU.
std::string optim_problem(int ordinal);

}  // namespace aiacc
