#include "csrc/engines/registry.h"

#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/hierarchical/hierarchical_device_engine.h"
#include "csrc/engines/hierarchical/hierarchical_engine.h"
#include "csrc/engines/local/local_engine.h"
#include "csrc/engines/members.h"
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
                                                   int host_lanes) {
  HostEngineFactory between;
  if (name == "hierarchical-tcp") {
    between = make<TcpEngine>;
  } else if (name == "hierarchical-mpi") {
    // Not on the communicators of MPI's world: the engine for host memory may have those.
    between = [](const EngineContext& job) {
      return create_mpi_engine(job, all_ranks(job.size), job.split_id, Cancellation{});
    };
  } else if (name != "nccl" && name != "hierarchical") {
    throw Error(Code::kInvalidArgument,
                "[engines] no engine for GPUs is called '" + name +
                    "' (expected nccl, hierarchical, hierarchical-tcp or hierarchical-mpi); check "
                    "AIACC_GPU_ENGINE");
  }
  std::unique_ptr<DeviceEngine> nccl = create(device_engine_registry().front(), context);
  if (name == "nccl") {
    return nccl;
  }
  EngineContext job = context;
  job.lanes = host_lanes;
  return create_hierarchical_device_engine(std::move(nccl), job, between);
}

}  // namespace aiacc
