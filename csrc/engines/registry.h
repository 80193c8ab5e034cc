#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/engine.h"

namespace aiacc {

/// An engine this build knows of, whether it can run here or not.
struct EngineEntry {
  const char* name;
  /// Asks the machine (may load a library), never another rank.
  Viability (*viability)();
  /// Collective: all ranks create the same engine. Throws Error if it is not viable.
  std::unique_ptr<Engine> (*create)(const EngineContext& context);
};

/// All entries, for choosing and for printing what a build has.
const std::vector<EngineEntry>& engine_registry();

/// The entry of that name. Throws Error(kInvalidArgument) that lists the known names.
const EngineEntry& find_engine(const std::string& name);

/// Creates the engine of that name. Collective. Throws Error(kEngine) with reason and remedy when
/// it is not viable here.
std::unique_ptr<Engine> create_engine(const std::string& name, const EngineContext& context);

/// Creates the engine for tensors on GPUs that a value of AIACC_GPU_ENGINE stands for: nccl,
/// hierarchical (NCCL on both levels) or hierarchical-tcp (NCCL inside the hosts, `host_lanes` lanes of
/// tcp between them). Collective. Throws Error as create_engine does.
std::unique_ptr<Engine> create_gpu_engine(const std::string& name,
                                          const EngineContext& context,
                                          int host_lanes);

}  // namespace aiacc
