#include "csrc/core/device_path.h"

#include <utility>

#include "csrc/base/log.h"

namespace aiacc {
namespace {

std::string name_of(const Unit& unit) {
  const Request& request = unit.pieces.front().request();
  std::string name = "'" + label_of(request.process_set, request.name) + "'";
  if (unit.pieces.size() > 1) {
    name += " and " + std::to_string(unit.pieces.size() - 1) + " more";
  }
  return name;
}

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

DevicePath::DevicePath(DeviceEngine* engine, DevicePathOptions options)
    : engine_(engine), options_(std::move(options)) {}

void DevicePath::refuse(const Request& request, const std::string& problem) const {
  throw Error(Code::kUnsupported,
              "[submit] " + std::string(aiacc::name_of(request.kind)) + " '" +
                  label_of(request.process_set, request.name.substr(0, 100)) + "' on GPU " +
                  std::to_string(request.device) + ": " + problem);
}

/// Of the device that `engine_` has chosen by now, or chooses.
const std::shared_ptr<DeviceTools>& DevicePath::tools() {
  const std::lock_guard lock(mutex_);
  if (tools_ == nullptr) {
    tools_ = std::make_shared<DeviceTools>(
        engine_ == nullptr ? staged_device_ : engine_->device(-1), engine_ != nullptr);
  }
  return tools_;
}

/// The engine's, or the one that staging uses; `ordinal` -1: whichever it is.
std::shared_ptr<Device> DevicePath::device(int ordinal) {
  if (engine_ != nullptr) {
    return engine_->device(ordinal);
  }
  const std::lock_guard lock(mutex_);
  if (staged_device_ == nullptr) {
    staged_device_ =
        Device::open(options_.staging(), ordinal >= 0 ? ordinal : options_.staged_device);
  }
  if (ordinal >= 0 && ordinal != staged_device_->ordinal()) {
    throw Error(Code::kUnsupported,
                "[gpu] a tensor on GPU " + std::to_string(ordinal) + " (expected GPU " +
                    std::to_string(staged_device_->ordinal()) +
                    ", the one that this rank has used before); start one process for each GPU");
  }
  return staged_device_;
}

/// Needs a Device::Scope.
Staging& DevicePath::staging() {
  DeviceTools& shared = *tools();
  const std::lock_guard lock(mutex_);
  if (staging_ == nullptr) {
    staging_ = std::make_unique<Staging>(shared.device, shared.pool, options_.staged_lanes);
    if (aborted_) {
      staging_->abort(*aborted_);
    }
  }
  return *staging_;
}

DevicePath::~DevicePath() {
  if (staging_ != nullptr) {
    try {
      const Device::Scope scope(*staged_device_);
      staging_.reset();
    } catch (const Error&) {
      static_cast<void>(staging_.release());  // The driver is shutting down, and all this with it.
    }
  }
}

/// Throws Error(kUnsupported) unless the engine has that reduction. Needs a Device::Scope.
void DevicePath::check_reductions(const Request& request) const {
  if (engine_ == nullptr) {
    if (request.wire != WireFormat::kTensor) {
      refuse(request,
             std::string("wire format ") + aiacc::name_of(request.wire) +
                 " (expected tensor: this job stages tensors of GPUs through the host); use the "
                 "engine nccl");
    }
    return;
  }
  if (request.kind != OpKind::kAllreduce && request.kind != OpKind::kReducescatter) {
    return;
  }
  const ReduceOp op = request.op == ReduceOp::kAverage ? ReduceOp::kSum : request.op;
  for (std::size_t i = 0; i < request.tensors(); ++i) {
    const std::string refusal = engine_->refusal({request.tensor(i).dtype, op, request.wire});
    if (!refusal.empty()) {
      refuse(request, refusal);
    }
  }
}

void DevicePath::admit(Operation& operation) {
  const Request& request = operation.request;
  if (engine_ == nullptr && !options_.staging) {
    refuse(request, options_.missing);
  }
  const std::shared_ptr<Device> device = this->device(request.device);
  const Device::Scope scope(*device);
  check_reductions(request);
  if (device->capturing(operation.stream)) {
    refuse(
        request,
        "its stream is being captured (expected one that runs): a collective cannot be part of a "
        "CUDA graph; call it outside of torch.cuda.graph");
  }
  operation.written = device->record(operation.stream);
}

/// Of the marks of one stream only the last has to be waited for.
void DevicePath::wait_for_inputs(const Unit& unit, CudaStream stream, const Device& device) const {
  std::vector<const Mark*> last;
  for (const Piece& piece : unit.pieces) {
    const Mark& written = piece.operation->written;
    if (written == nullptr) {
      continue;  // zeros of a rank that has joined
    }
    bool known = false;
    for (const Mark*& mark : last) {
      if ((*mark)->stream == written->stream) {
        mark = (*mark)->number < written->number ? &written : mark;
        known = true;
      }
    }
    if (!known) {
      last.push_back(&written);
    }
  }
  for (const Mark* mark : last) {
    device.wait(stream, *mark);
  }
}

Mark DevicePath::run_queued(const Unit& unit, int lane) {
  DeviceTools& shared = *tools();
  const CudaStream stream = unit.team->gpu->stream(lane);
  wait_for_inputs(unit, stream, *shared.device);
  execute_device_unit(unit, lane, shared);
  return shared.device->record(stream);
}

void DevicePath::prepare(const Unit& unit, int lane) {
  const std::shared_ptr<Device> device = this->device(-1);
  const Device::Scope scope(*device);
  staging().prepare(
      unit, lane, [&](const Unit& of, CudaStream stream) { wait_for_inputs(of, stream, *device); });
}

void DevicePath::run(const Unit& unit, int lane, PackBuffer& buffer) {
  const std::shared_ptr<Device> device = this->device(-1);
  const Device::Scope scope(*device);
  const Mark done = stages() ? staging().run(unit,
                                             lane,
                                             buffer,
                                             [&](const Unit& of, CudaStream stream) {
                                               wait_for_inputs(of, stream, *device);
                                             })
                             : run_queued(unit, lane);
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
  queued_.push_back({done, name_of(unit), Clock::now()});
}

void DevicePath::order_after(const Operation& operation, CudaStream stream, const Device& device) {
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

void DevicePath::order_after(const Operation& operation, CudaStream stream) {
  if (operation.completed.empty()) {
    return;  // nothing had to move
  }
  const Device& device = *tools()->device;
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
  Device& device = *tools()->device;
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

/// Forgets units that are over, up to the first that is not. Needs the lock and a Device::Scope.
void DevicePath::retire() {
  while (!queued_.empty() && tools_->device->reached(queued_.front().done)) {
    queued_.pop_front();
  }
}

bool DevicePath::busy() {
  const std::lock_guard lock(mutex_);
  if (queued_.empty()) {
    return false;
  }
  const Device::Scope scope(*tools_->device);
  retire();
  return !queued_.empty();
}

void DevicePath::look_after() {
  const std::lock_guard lock(mutex_);
  if (queued_.empty()) {
    return;
  }
  const Device::Scope scope(*tools_->device);
  retire();
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
  if (options_.stall_fail_s > 0 && waited >= options_.stall_fail_s) {
    throw Error(Code::kTimeout, text());
  }
  if (options_.stall_warn_s > 0 && waited >= options_.stall_warn_s && !oldest.reported) {
    oldest.reported = true;
    AIACC_LOG(kWarning) << text();
  }
}

bool DevicePath::quiesce(Clock::time_point deadline) noexcept {
  if (engine_ != nullptr) {
    return engine_->quiesce(deadline);
  }
  Staging* staging = nullptr;
  {
    const std::lock_guard lock(mutex_);
    staging = staging_.get();
  }
  if (staging == nullptr) {
    return true;
  }
  try {
    const Device::Scope scope(*staged_device_);
    return staging->quiesce(deadline);
  } catch (const Error&) {
    return true;  // The driver is shutting down: nothing is running.
  }
}

void DevicePath::abort(const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  if (!aborted_) {
    aborted_ = status;
  }
  if (staging_ != nullptr) {
    staging_->abort(*aborted_);
  }
}

}  // namespace aiacc
