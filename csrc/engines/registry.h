#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/device_engine.h"
#include "csrc/engines/engine.h"

namespace aiacc {

/// An engine of one kind, Engine or DeviceEngine, that this build knows of, whether it can run here
/// or not.
template <class Kind>
struct EngineEntry {
  const char* name;
  /// Asks the machine (may load a library), never another rank.
  Viability (*viability)();
  /// Collective: all ranks create the same engine. Throws Error if it is not viable.
  std::unique_ptr<Kind> (*create)(const EngineContext& context);
};

/// All entries, for choosing and for printing what a build has.
const std::vector<EngineEntry<Engine>>& engine_registry();
const std::vector<EngineEntry<DeviceEngine>>& device_engine_registry();

/// The entry of that name, for host memory. Throws Error(kInvalidArgument) that lists the known
/// names.
const EngineEntry<Engine>& find_engine(const std::string& name);

/// Creates the engine of that name for host memory. Collective. Throws Error(kEngine) with reason
/// and remedy when it is not viable here.
std::unique_ptr<Engine> create_engine(const std::string& name, const EngineContext& context);

/// Creates the engine for tensors on GPUs that a value of AIACC_GPU_ENGINE stands for: nccl,
/// hierarchical (NCCL on both levels), or hierarchical-tcp and hierarchical-mpi (NCCL inside the
/// hosts, `host_lanes` lanes of that engine between them). Collective. Throws Error as
/// create_engine does.
std::unique_ptr<DeviceEngine> create_device_engine(const std::string& name,
                                                   const EngineContext& context,
                                                   int host_lanes);

}  // namespace aiacc
