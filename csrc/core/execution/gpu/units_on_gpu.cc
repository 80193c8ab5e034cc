#include "csrc/core/execution/gpu/units_on_gpu.h"

#include <chrono>
#include <utility>

#include "csrc/base/log.h"

namespace aiacc {
namespace {

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void UnitsOnGpu::add(const Unit& unit,
                     const Mover& mover,
                     const std::shared_ptr<Device>& device,
                     const Mark& done,
                     ReportPool::Taken checked) {
  const std::lock_guard lock(mutex_);
  for (const Piece& piece : unit.pieces) {
    Operation& operation = *piece.operation;
    if (operation.completed.empty() || operation.completed.back() != done) {
      operation.completed.push_back(done);
    }
    if (piece.buffers().gathered_on_gpu != nullptr) {
      piece.buffers().gathered_on_gpu->users = {done};
    }
  }
  queued_.push_back({device,
                     done,
                     id_of(unit),
                     name_of(unit),
                     mover,
                     unit.communicator,
                     Clock::now(),
                     std::move(checked)});
}

void UnitsOnGpu::order_after(const Operation& operation, CudaStream stream, const Device& device) {
  const std::lock_guard lock(mutex_);
  for (const Mark& mark : operation.completed) {
    device.wait(stream, mark);
  }
}

/// Forgets units that are over, up to the first that is not. Needs the lock.
void UnitsOnGpu::retire() {
  while (!queued_.empty()) {
    const Queued& oldest = queued_.front();
    const Device::Scope scope(*oldest.device);
    if (!oldest.device->reached(oldest.done)) {
      return;
    }
    if (oldest.checked != nullptr) {
      finite_->collect(*oldest.checked);
    }
    queued_.pop_front();
  }
}

std::optional<UnitWait> UnitsOnGpu::first() {
  std::shared_ptr<const Communicator> communicator;  // released after the lock
  const std::lock_guard lock(mutex_);
  retire();
  if (queued_.empty()) {
    return std::nullopt;
  }
  const Queued& oldest = queued_.front();
  UnitWait first{oldest.id, oldest.name};
  communicator = oldest.communicator.lock();
  if (communicator != nullptr && oldest.mover.engine != nullptr) {
    const LaneWait wait = oldest.mover.engine->waits(oldest.mover.lane);
    first.seconds = wait.seconds;
    first.ahead = communicator->distance_to(wait);
  }
  return first;
}

bool UnitsOnGpu::busy() {
  const std::lock_guard lock(mutex_);
  retire();
  return !queued_.empty() || (finite_ != nullptr && finite_->has_found());
}

void UnitsOnGpu::look_after() {
  const std::lock_guard lock(mutex_);
  retire();
  if (finite_ != nullptr) {
    finite_->throw_found();
  }
  if (queued_.empty()) {
    return;
  }
  Queued& oldest = queued_.front();
  const double waited = seconds(Clock::now() - oldest.since);
  const auto text = [&] {
    return "[gpu] the unit of " + oldest.name + " has been on the GPU's queue for " +
           std::to_string(static_cast<int>(waited)) +
           " s: what it waits for is earlier work of this GPU, or another rank's GPU";
  };
  if (stall_fail_s_ > 0 && waited >= stall_fail_s_) {
    throw Error(Code::kTimeout, text());
  }
  if (stall_warn_s_ > 0 && waited >= stall_warn_s_ && !oldest.reported) {
    oldest.reported = true;
    AIACC_LOG(kWarning) << text();
  }
}

void UnitsOnGpu::collect_rest() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    retire();
  } catch (const std::exception&) {
    // The device has failed, or its driver has ended: its reports say nothing.
  }
}

}  // namespace aiacc
