#pragma once

#include <string>
#include <vector>

namespace aiacc {

/// What decides whether ranks would share a GPU, which NCCL refuses, and what all of them can do.
struct NcclGpus {
  std::vector<std::string> visible;  ///< see visible_devices; empty: not known
  std::string host;    ///< NCCL_HOSTID, by which NCCL tells hosts apart; "": their names
  int capability = 0;  ///< the lowest compute capability of them, before the point; 0: not known
  bool may_share = false;  ///< NCCL has been told that ranks may share a GPU, and can do it
};

/// The GPUs of this process. Asks the driver and the environment, never another rank. Throws
/// nothing: what is wrong with the driver is said by nccl_viability.
NcclGpus nccl_gpus();

}  // namespace aiacc
