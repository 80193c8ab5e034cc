#pragma once

#include "csrc/core/execution/unit.h"
#include "csrc/cuda/device.h"

namespace aiacc {

/// Makes a stream of the device wait for who wrote a unit's tensors. Needs a Device::Scope.
void wait_for_inputs(const Unit& unit, CudaStream stream, const Device& device);

}  // namespace aiacc
