#include "csrc/core/execution/gpu/staged_executor.h"

namespace aiacc {

StagedExecutor::StagedExecutor(const DeviceOptions& options)
    : DeviceExecutor(options),
      gpus_([driver = options.driver, proposed = options.proposed](
                int ordinal) { return Device::open_or_propose(driver(), ordinal, proposed); },
            [this, lanes = options.lanes](const std::shared_ptr<Device>& device) {
              const auto pool = DevicePool::make(device);
              auto made = std::make_unique<Lanes>();
              for (int lane = 0; lane < lanes; ++lane) {
                made->push_back(std::make_unique<StagedLane>(lane, device, pool, cancellation_));
              }
              return made;
            }) {}

std::string StagedExecutor::refusal(const Request& request) const {
  return is_float8(request.wire)
             ? std::string("wire format ") + name_of(request.wire) +
                   " (expected 16 bits or more: this job stages tensors of GPUs through the host); "
                   "use the engine nccl"
             : "";
}

/// Where this rank's tensors of a unit are.
StagedExecutor::Gpus::Gpu& StagedExecutor::own_gpu(const Unit& unit) {
  return gpus_.at(unit.devices()->at(static_cast<std::size_t>(unit.communicator->rank)));
}

void StagedExecutor::prepare(const Unit& unit, int lane) {
  Gpus::Gpu& gpu = own_gpu(unit);
  const Device::Scope scope(*gpu.device);
  gpus_.tools_of(gpu)[static_cast<std::size_t>(lane)]->prepare(unit);
}

void StagedExecutor::run(Unit& unit, int lane, PackBuffer& buffer, const Finished& finished) {
  const auto since = Clock::now();
  {
    Gpus::Gpu& gpu = own_gpu(unit);
    const Device::Scope scope(*gpu.device);
    StagedLane& staged = *gpus_.tools_of(gpu)[static_cast<std::size_t>(lane)];
    add(unit, {gpu.device, staged.run(unit, buffer)});
  }
  finished(unit, since);
}

bool StagedExecutor::quiesce(Clock::time_point deadline) noexcept {
  bool quiet = true;
  for (Gpus::Gpu* gpu : gpus_.loaded()) {
    try {
      const Device::Scope scope(*gpu->device);
      for (const auto& lane : *gpu->tools) {
        quiet = lane->quiesce(deadline) && quiet;
      }
    } catch (const Error&) {
      // The driver is shutting down: nothing is running.
    }
  }
  return quiet;
}

}  // namespace aiacc
