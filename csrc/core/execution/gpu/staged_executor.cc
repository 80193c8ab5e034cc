#include "csrc/core/execution/gpu/staged_executor.h"

namespace aiacc {

StagedExecutor::~StagedExecutor() {
  for (auto& [where, lane] : lanes_) {
    end_on_gpu(*gpu(where.second).device, std::move(lane));
  }
}

std::string StagedExecutor::refusal(const Request& request) const {
  return is_float8(request.wire)
             ? std::string("wire format ") + name_of(request.wire) +
                   " (expected 16 bits or more: this job stages tensors of GPUs through the host); "
                   "use the engine nccl"
             : "";
}

/// Where this rank's tensors of a unit are.
const DeviceExecutor::Gpu& StagedExecutor::own_gpu(const Unit& unit) {
  return gpu(unit.devices()->at(static_cast<std::size_t>(unit.communicator->rank)));
}

/// Needs a Device::Scope. The lane's thread, which alone makes it.
StagedLane& StagedExecutor::lane_on(const Gpu& gpu, int lane) {
  const std::pair<int, int> where(lane, gpu.device->ordinal());
  {
    const std::lock_guard lock(lanes_mutex_);
    if (const auto known = lanes_.find(where); known != lanes_.end()) {
      return *known->second;
    }
  }
  auto made = std::make_unique<StagedLane>(lane, gpu.device, gpu.pool, cancellation_);
  const std::lock_guard lock(lanes_mutex_);
  return *lanes_.emplace(where, std::move(made)).first->second;
}

void StagedExecutor::prepare(const Unit& unit, int lane) {
  const Gpu& gpu = own_gpu(unit);
  const Device::Scope scope(*gpu.device);
  lane_on(gpu, lane).prepare(unit);
}

void StagedExecutor::run(Unit& unit, int lane, PackBuffer& buffer, const Finished& finished) {
  const auto since = Clock::now();
  {
    const Gpu& gpu = own_gpu(unit);
    const Device::Scope scope(*gpu.device);
    add(unit, {gpu.device, lane_on(gpu, lane).run(unit, buffer)});
  }
  finished(unit, since);
}

bool StagedExecutor::quiesce(Clock::time_point deadline) noexcept {
  std::vector<StagedLane*> lanes;
  {
    const std::lock_guard lock(lanes_mutex_);
    for (const auto& [where, lane] : lanes_) {
      lanes.push_back(lane.get());
    }
  }
  bool quiet = true;
  for (const StagedLane* lane : lanes) {
    quiet = lane->quiesce(deadline) && quiet;
  }
  return quiet;
}

}  // namespace aiacc
