#pragma once

#include "csrc/core/device_tools.h"
#include "csrc/core/unit.h"
#include "csrc/engines/device_engine.h"

namespace aiacc {

/// Queues one unit of tensors on a GPU on its lane's stream, with the engine of its GPUs: pack
/// with the prescale, operation, unpack with what is to be done to the sum; one kernel each. It is
/// packed while the lane's unit before it is on its way. A single tensor is worked on in place where
/// the engine can. A piece without memory stands for zeros, and its result is dropped.
/// With `unit.finite` the first kernel looks at the inputs, and copies where it would not be needed;
/// what it finds lies in `checked`, which is null otherwise, when the GPU has done the unit.
/// Returns the mark of its end. Needs a Device::Scope. Throws what engine and CUDA throw.
Mark execute_device_unit(const Unit& unit,
                         int lane,
                         DeviceEngine& engine,
                         DeviceTools& tools,
                         const WaitForInputs& wait,
                         ReportPool::Taken& checked);

}  // namespace aiacc
