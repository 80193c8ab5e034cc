#include "csrc/core/execution/device_executor.h"

#include <chrono>
#include <utility>

#include "csrc/base/log.h"

namespace aiacc {
namespace {

[[noreturn]] void refuse(const Request& request, const std::string& problem) {
  throw Error(Code::kUnsupported,
              "[submit] " + operation_text(request) + " on GPU " + std::to_string(request.device) +
                  ": " + problem);
}

}  // namespace

const DeviceExecutor::Gpu* DeviceExecutor::find_gpu(int ordinal) {
  const std::lock_guard lock(gpus_mutex_);
  const auto known = gpus_.find(ordinal < 0 ? first_gpu_ : ordinal);
  return known == gpus_.end() ? nullptr : &known->second;
}

const DeviceExecutor::Gpu& DeviceExecutor::gpu(int ordinal) {
  if (const Gpu* known = find_gpu(ordinal)) {
    return *known;
  }
  const std::lock_guard opening(opening_);
  if (const Gpu* known = find_gpu(ordinal)) {
    return *known;
  }
  const std::shared_ptr<Device> device = open(ordinal);
  const std::lock_guard lock(gpus_mutex_);
  first_gpu_ = gpus_.empty() ? device->ordinal() : first_gpu_;
  return gpus_.emplace(device->ordinal(), Gpu{device, DevicePool::make(device)}).first->second;
}

void DeviceExecutor::admit(Operation& operation) {
  const Request& request = operation.request;
  Device& device = *gpu(request.device).device;
  const Device::Scope scope(device);
  if (const std::string problem = refusal(request); !problem.empty()) {
    refuse(request, problem);
  }
  if (device.capturing(operation.stream)) {
    refuse(
        request,
        "its stream is being captured (expected one that runs): a collective cannot be part of a "
        "CUDA graph; call it outside of torch.cuda.graph");
  }
  operation.written = device.record(operation.stream);
}

/// Needs a Device::Scope.
void DeviceExecutor::order_after(const Operation& operation,
                                 CudaStream stream,
                                 const Device& device) {
  if (device.capturing(stream)) {
    refuse(operation.request,
           "the stream that shall wait for it is being captured (expected one that runs); "
           "synchronize outside of torch.cuda.graph");
  }
  const std::lock_guard lock(mutex_);
  for (const Mark& mark : operation.completed) {
    device.wait(stream, mark);
  }
}

void DeviceExecutor::order_after(const Operation& operation, CudaStream stream) {
  if (operation.completed.empty()) {
    return;  // nothing had to move
  }
  const Device& device = *gpu(operation.request.device).device;
  const Device::Scope scope(device);
  order_after(operation, stream, device);
}

void DeviceExecutor::copy_gathered(Operation& operation,
                                   std::size_t tensor,
                                   void* to,
                                   CudaStream stream) {
  DeviceBlock* block = operation.buffers[tensor].gathered_on_gpu.get();
  if (block == nullptr) {
    return;  // no rank had a row
  }
  const TensorSpec& spec = operation.request.tensors[tensor];
  std::uint64_t bytes = 0;
  for (const std::int64_t rows : operation.buffers[tensor].first_extents) {
    bytes += static_cast<std::uint64_t>(rows) * spec.row_bytes();
  }
  Device& device = *gpu(operation.request.device).device;
  const Device::Scope scope(device);
  order_after(operation, stream, device);
  AIACC_CUDA_CHECK(device.driver(),
                   copy_async,
                   reinterpret_cast<CudaAddress>(to),
                   block->address,
                   bytes,
                   stream);
  block->users = {device.record(stream)};
}

void DeviceExecutor::add(const Unit& unit, Queued queued) {
  queued.id = id_of(unit);
  queued.name = name_of(unit);
  queued.communicator = unit.communicator;
  const std::lock_guard lock(mutex_);
  for (const Piece& piece : unit.pieces) {
    auto& completed = piece.operation->completed;
    if (completed.empty() || completed.back() != queued.done) {
      completed.push_back(queued.done);
    }
    if (piece.buffers().gathered_on_gpu != nullptr) {
      piece.buffers().gathered_on_gpu->users = {queued.done};
    }
  }
  queued.since = Clock::now();
  queued_.push_back(std::move(queued));
}

/// Forgets units that are over, up to the first that is not. Needs the lock.
void DeviceExecutor::retire() {
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

std::optional<UnitWait> DeviceExecutor::first_queued() {
  std::shared_ptr<const Communicator> communicator;  // released after the lock
  const std::lock_guard lock(mutex_);
  retire();
  if (queued_.empty()) {
    return std::nullopt;
  }
  const Queued& oldest = queued_.front();
  UnitWait first{oldest.id, oldest.name};
  communicator = oldest.communicator.lock();
  if (communicator != nullptr && oldest.engine != nullptr) {
    const LaneWait wait = oldest.engine->waits(oldest.lane);
    first.seconds = wait.seconds;
    first.ahead = communicator->distance_to(wait);
  }
  return first;
}

bool DeviceExecutor::busy() {
  const std::lock_guard lock(mutex_);
  retire();
  return !queued_.empty() || (finite_ != nullptr && finite_->has_found());
}

void DeviceExecutor::look_after() {
  const std::lock_guard lock(mutex_);
  retire();
  if (finite_ != nullptr) {
    finite_->throw_found();
  }
  if (queued_.empty()) {
    return;
  }
  Queued& oldest = queued_.front();
  const double waited = std::chrono::duration<double>(Clock::now() - oldest.since).count();
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

void DeviceExecutor::drain(Clock::time_point deadline) noexcept {
  if (!quiesce(deadline)) {
    AIACC_LOG(kWarning) << "[gpu] the GPU has not done what is queued; its results are incomplete";
  }
  try {
    const std::lock_guard lock(mutex_);
    retire();  // and collect the findings
  } catch (const std::exception&) {
    // The device has failed, or its driver has ended: its reports say nothing.
  }
}

}  // namespace aiacc
