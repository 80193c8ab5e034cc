#include "csrc/engines/hierarchical/hierarchical_device_engine.h"

#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/hierarchical/host_topology.h"
#include "csrc/engines/staged/host_staged_engine.h"
#include "csrc/engines/tcp/tcp_engine.h"

namespace aiacc {
namespace {

/// Numbers of connections from here on are not those of process sets on the engine for host memory.
constexpr std::uint32_t kFirstSplitId = std::uint32_t{1} << 31;

}  // namespace

std::shared_ptr<Device> HierarchicalDeviceEngine::device(int ordinal) {
  std::shared_ptr<Device> device;
  for (DeviceEngine* part : parts_) {
    device = part->device(ordinal);
  }
  return device;
}

void HierarchicalDeviceEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const DeviceReduction& reduction) {
  AIACC_CHECK(!is_float8(reduction.wire));
  const DeviceReduction sum{dtype_on_wire(reduction), reduction.op};
  if (grouping_) {
    group_.push_back({lane, send, recv, count, sum});
  } else {
    Hierarchical::all_reduce(lane, send, recv, count, sum);
  }
}

void HierarchicalDeviceEngine::begin_group() {
  group_.clear();
  grouping_ = true;
}

void HierarchicalDeviceEngine::end_group() {
  grouping_ = false;
  const auto of = [&](int step, std::size_t call) { return server(step, group_[call]); };
  for (int step = 0; step < kSteps; ++step) {
    // Each engine gets its calls of the step as a group: first those whose engine comes first.
    for (std::size_t first = 0; first < group_.size(); ++first) {
      DeviceEngine* engine = of(step, first);
      std::size_t before = 0;
      while (of(step, before) != engine) {
        ++before;
      }
      if (engine == nullptr || before < first) {
        continue;
      }
      engine->begin_group();
      for (std::size_t call = first; call < group_.size(); ++call) {
        if (of(step, call) == engine) {
          do_step(step, group_[call]);
        }
      }
      engine->end_group();
    }
  }
}

std::string HierarchicalDeviceEngine::refusal(const DeviceReduction& reduction) const {
  if (is_float8(reduction.wire)) {
    return std::string("wire ") + name_of(reduction.wire) +
           " (expected a format of 16 or 32 bits); set AIACC_GPU_ENGINE=nccl for it";
  }
  for (const DeviceEngine* part : parts_) {
    const std::string problem = part->refusal(reduction);
    if (!problem.empty()) {
      return problem;
    }
  }
  return "";
}

void HierarchicalDeviceEngine::check() {
  for (DeviceEngine* part : parts_) {
    part->check();
  }
}

LaneWait HierarchicalDeviceEngine::issue_waits() const {
  return longest_of(parts_, [](const DeviceEngine& part) { return part.issue_waits(); });
}

LaneWait HierarchicalDeviceEngine::waits(int lane) const {
  return longest_of(parts_, [lane](const DeviceEngine& part) { return part.waits(lane); });
}

std::unique_ptr<DeviceEngine> HierarchicalDeviceEngine::split(const std::vector<int>& members,
                                                              std::uint32_t split_id) {
  return std::unique_ptr<DeviceEngine>(new HierarchicalDeviceEngine(*this, members, split_id));
}

std::unique_ptr<DeviceEngine> create_hierarchical_device_engine(std::unique_ptr<DeviceEngine> nccl,
                                                                EngineContext context,
                                                                bool staged_between_hosts) {
  check_hosts(context);
  const int rank = context.rank;
  std::unique_ptr<DeviceEngine> flat = std::move(nccl);
  std::unique_ptr<DeviceEngine> near;
  if (staged_between_hosts && HostTopology(context.host_of).hosts() > 1) {
    near = std::move(flat);
    context.split_id = kFirstSplitId;
    flat = std::make_unique<HostStagedEngine>(
        std::make_unique<TcpEngine>(context), near->split({rank}, 0), rank, context.size);
  }
  return std::make_unique<HierarchicalDeviceEngine>(
      std::move(flat), context.host_of, rank, std::move(near), context.split_id);
}

}  // namespace aiacc
