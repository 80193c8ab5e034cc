#pragma once

#include <string>
#include <vector>

#include "csrc/cuda/driver.h"

namespace aiacc {

/// PCI addresses, such as "0000:1a:00.0", of the GPUs that this process sees, in the order of their
/// numbers. They tell GPUs of a host apart as NCCL does: partitions of one GPU (MIG) have one
/// address. Initialises the driver. Throws Error(kEngine) if that fails.
std::vector<std::string> visible_devices(const CudaDriver& driver);

/// The lowest compute capability of these GPUs, the number before the point; 0 if there is none.
/// Initialises the driver. Throws Error(kEngine) if that fails.
int lowest_capability(const CudaDriver& driver);

}  // namespace aiacc
