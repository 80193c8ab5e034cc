#include "csrc/core/execution/gpu/staged_executor.h"

#include <utility>

namespace aiacc {

StagedExecutor::StagedExecutor(std::function<const CudaDriver&()> driver,
                               int proposed,
                               int lanes,
                               UnitsOnGpu& units)
    : units_(units),
      gpus_([driver = std::move(driver), proposed](
                int ordinal) { return Device::open_or_propose(driver(), ordinal, proposed); },
            [this, lanes](const std::shared_ptr<Device>& device) {
              return std::make_unique<Staging>(device, lanes, cancellation_);
            }) {}

std::string StagedExecutor::refusal(const Request& request) const {
  return is_float8(request.wire)
             ? std::string("wire format ") + name_of(request.wire) +
                   " (expected 16 bits or more: this job stages tensors of GPUs through the host); "
                   "use the engine nccl"
             : "";
}

/// Where this rank's tensors of a unit are.
UsedGpus<Staging>::Gpu& StagedExecutor::own_gpu(const Unit& unit) {
  return gpus_.at(unit.devices()->at(static_cast<std::size_t>(unit.communicator->rank)));
}

void StagedExecutor::prepare(const Unit& unit, int lane) {
  auto& gpu = own_gpu(unit);
  const Device::Scope scope(*gpu.device);
  gpus_.resources_of(gpu).prepare(unit, lane);
}

void StagedExecutor::run(Unit& unit, int lane, PackBuffer& buffer, const Finished& finished) {
  const auto since = Clock::now();
  {
    auto& gpu = own_gpu(unit);
    const Device::Scope scope(*gpu.device);
    const Mark done = gpus_.resources_of(gpu).run(unit, lane, buffer);
    units_.add(unit, {}, gpu.device, done, nullptr);
  }
  finished(unit, since);
}

bool StagedExecutor::quiesce(Clock::time_point deadline) noexcept {
  bool quiet = true;
  for (UsedGpus<Staging>::Gpu* gpu : gpus_.loaded()) {
    try {
      const Device::Scope scope(*gpu->device);
      quiet = gpu->resources->quiesce(deadline) && quiet;
    } catch (const Error&) {
      // The driver is shutting down: nothing is running.
    }
  }
  return quiet;
}

}  // namespace aiacc
