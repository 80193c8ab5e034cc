#include "csrc/core/execution/gpu/device_path.h"

#include <utility>

#include "csrc/base/log.h"
#include "csrc/core/execution/gpu/queued_executor.h"
#include "csrc/core/execution/gpu/staged_executor.h"

namespace aiacc {
namespace {

[[noreturn]] void refuse(const Request& request, const std::string& problem) {
  throw Error(Code::kUnsupported,
              "[submit] " + operation_text(request.kind, request.process_set, request.name) +
                  " on GPU " + std::to_string(request.device) + ": " + problem);
}

}  // namespace

DevicePath::DevicePath(DeviceEngine* engine, DevicePathOptions options)
    : units_(options.stall_warn_s, options.stall_fail_s, options.finite) {
  if (engine != nullptr) {
    executor_ =
        std::make_unique<QueuedExecutor>(*engine, options.lanes, options.finite != nullptr, units_);
  } else {
    executor_ = std::make_unique<StagedExecutor>(
        std::move(options.driver), options.proposed, options.lanes, units_);
  }
}

void DevicePath::admit(Operation& operation) {
  const Request& request = operation.request;
  Device& device = executor_->device(request.device);
  const Device::Scope scope(device);
  if (const std::string refusal = executor_->refusal(request); !refusal.empty()) {
    refuse(request, refusal);
  }
  if (device.capturing(operation.stream)) {
    refuse(
        request,
        "its stream is being captured (expected one that runs): a collective cannot be part of a "
        "CUDA graph; call it outside of torch.cuda.graph");
  }
  operation.written = device.record(operation.stream);
}

void DevicePath::order_after(const Operation& operation, CudaStream stream, const Device& device) {
  if (device.capturing(stream)) {
    refuse(operation.request,
           "the stream that shall wait for it is being captured (expected one that runs); "
           "synchronize outside of torch.cuda.graph");
  }
  units_.order_after(operation, stream, device);
}

void DevicePath::order_after(const Operation& operation, CudaStream stream) {
  if (operation.completed.empty()) {
    return;  // nothing had to move
  }
  const Device& device = executor_->device(operation.request.device);
  const Device::Scope scope(device);
  order_after(operation, stream, device);
}

void DevicePath::copy_gathered(Operation& operation,
                               std::size_t tensor,
                               void* to,
                               CudaStream stream) {
  DeviceBlock* block = operation.tensor(tensor).gathered_on_gpu.get();
  if (block == nullptr) {
    return;  // no rank had a row
  }
  const TensorSpec& spec = operation.request.tensor(tensor);
  std::uint64_t bytes = 0;
  for (const std::int64_t rows : operation.tensor(tensor).first_extents) {
    bytes += static_cast<std::uint64_t>(rows) * spec.row_bytes();
  }
  Device& device = executor_->device(operation.request.device);
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

void DevicePath::drain(Clock::time_point deadline) noexcept {
  if (!executor_->quiesce(deadline)) {
    AIACC_LOG(kWarning) << "[gpu] the GPU has not done what is queued; its results are incomplete";
  }
  units_.collect_rest();
}

}  // namespace aiacc
