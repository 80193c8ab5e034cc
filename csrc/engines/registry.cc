#include "csrc/engines/registry.h"

#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/hierarchical/hierarchical_device_engine.h"
#include "csrc/engines/hierarchical/hierarchical_engine.h"
#include "csrc/engines/local/local_engine.h"
#include "csrc/engines/mpi/mpi_loader.h"
#include "csrc/engines/nccl/nccl_engine.h"
#include "csrc/engines/shm/shm_engine.h"
#include "csrc/engines/tcp/tcp_engine.h"

namespace aiacc {
namespace {

template <class E>
std::unique_ptr<Engine> make(const EngineContext& context) {
  return std::make_unique<E>(context);
}

template <class Kind>
std::unique_ptr<Kind> create(const EngineEntry<Kind>& entry, const EngineContext& context) {
  const Viability viability = entry.viability();
  if (!viability.viable) {
    throw Error(Code::kEngine,
                std::string("[engines] the engine '") + entry.name +
                    "' cannot run here: " + viability.detail);
  }
  return entry.create(context);
}

}  // namespace

const std::vector<EngineEntry<Engine>>& engine_registry() {
  static const std::vector<EngineEntry<Engine>> entries = {
      {"local", [] { return Viability{true, "one rank: copies only"}; }, &make<LocalEngine>},
      {"shm",
       [] { return Viability{true, "built in: memory that the ranks of one host share"}; },
       &make<ShmEngine>},
      {"tcp", [] { return Viability{true, "built in"}; }, &make<TcpEngine>},
      {"hierarchical",
       [] { return Viability{true, "built in: shm inside hosts, tcp between them"}; },
       &create_hierarchical_engine},
      {"mpi", &mpi_viability, &create_mpi_engine},
      {"hierarchical-mpi", &mpi_viability, &create_hierarchical_mpi_engine},
  };
  return entries;
}

const std::vector<EngineEntry<DeviceEngine>>& device_engine_registry() {
  static const std::vector<EngineEntry<DeviceEngine>> entries = {
      {"nccl", &nccl_viability, &create_nccl_engine},
  };
  return entries;
}

const EngineEntry<Engine>& find_engine(const std::string& name) {
  std::string known;
  for (const EngineEntry<Engine>& entry : engine_registry()) {
    if (name == entry.name) {
      return entry;
    }
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw Error(
      Code::kInvalidArgument,
      "[engines] no engine is called '" + name + "' (expected " + known + "); check AIACC_ENGINE");
}

std::unique_ptr<Engine> create_engine(const std::string& name, const EngineContext& context) {
  return create(find_engine(name), context);
}

std::unique_ptr<DeviceEngine> create_device_engine(const std::string& name,
                                                   const EngineContext& context,
                                                   int tcp_lanes) {
  const bool tcp_between = name == "hierarchical-tcp";
  if (name != "nccl" && name != "hierarchical" && !tcp_between) {
    throw Error(Code::kInvalidArgument,
                "[engines] no engine for GPUs is called '" + name +
                    "' (expected nccl, hierarchical or hierarchical-tcp); check AIACC_GPU_ENGINE");
  }
  std::unique_ptr<DeviceEngine> nccl = create(device_engine_registry().front(), context);
  if (name == "nccl") {
    return nccl;
  }
  EngineContext between = context;
  between.lanes = tcp_lanes;
  return create_hierarchical_device_engine(std::move(nccl), between, tcp_between);
}

}  // namespace aiacc
