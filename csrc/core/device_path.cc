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

/// Of that number; -1: the first one that was used, or a proposal.
DevicePath::Gpu& DevicePath::gpu(int ordinal) {
  const std::lock_guard lock(mutex_);
  ordinal = ordinal < 0 ? first_gpu_ : ordinal;
  const auto known = gpus_.find(ordinal);
  if (known != gpus_.end()) {
    return known->second;
  }
  const std::shared_ptr<Device> device =
      engine_ != nullptr
          ? engine_->open(ordinal)
          : Device::open_or_propose(options_.staging(), ordinal, options_.staged_device);
  first_gpu_ = gpus_.empty() ? device->ordinal() : first_gpu_;
  return gpus_.emplace(device->ordinal(), Gpu{device, nullptr, nullptr}).first->second;
}

/// Where this rank's tensors of a unit are.
DevicePath::Gpu& DevicePath::own_gpu(const Unit& unit) {
  return gpu(unit.devices()->at(static_cast<std::size_t>(unit.team->rank)));
}

DeviceTools& DevicePath::tools(Gpu& gpu) {
  const std::lock_guard lock(mutex_);
  if (gpu.tools == nullptr) {
    gpu.tools =
        std::make_shared<DeviceTools>(gpu.device, engine_ != nullptr, options_.finite != nullptr);
  }
  return *gpu.tools;
}

/// Needs a Device::Scope.
Staging& DevicePath::staging(Gpu& gpu) {
  const DeviceTools& shared = tools(gpu);
  const std::lock_guard lock(mutex_);
  if (gpu.staging == nullptr) {
    gpu.staging = std::make_unique<Staging>(gpu.device, shared.pool, options_.lanes);
    if (aborted_) {
      gpu.staging->abort(*aborted_);
    }
  }
  return *gpu.staging;
}

DevicePath::~DevicePath() {
  for (auto& [ordinal, gpu] : gpus_) {
    try {
      const Device::Scope scope(*gpu.device);
      gpu.staging.reset();
    } catch (const Error&) {
      static_cast<void>(
          gpu.staging.release());  // The driver is shutting down, and all this with it.
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
  const std::shared_ptr<Device> device = gpu(request.device).device;
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

void DevicePath::prepare(const Unit& unit, int lane) {
  Gpu& gpu = own_gpu(unit);
  const Device::Scope scope(*gpu.device);
  staging(gpu).prepare(unit, lane, [&](const Unit& of, CudaStream stream) {
    wait_for_inputs(of, stream, *gpu.device);
  });
}

/// Lanes of the plan are those of the engine for host memory; an engine for GPUs may have fewer.
int DevicePath::lane_of(const DeviceEngine& engine, int lane) const {
  return lane + 1 == options_.lanes ? engine.express_lane() : lane % engine.lanes();
}

void DevicePath::run(const Unit& unit, int lane, PackBuffer& buffer) {
  DeviceEngine* engine = engine_ != nullptr ? &unit.team->gpu->on(*unit.devices()) : nullptr;
  Gpu& gpu = engine != nullptr ? this->gpu(engine->device(-1)->ordinal()) : own_gpu(unit);
  const Device::Scope scope(*gpu.device);
  const WaitForInputs wait = [&](const Unit& of, CudaStream stream) {
    wait_for_inputs(of, stream, *gpu.device);
  };
  ReportPool::Taken checked;
  const Mark done =
      engine != nullptr
          ? execute_device_unit(unit, lane_of(*engine, lane), *engine, tools(gpu), wait, checked)
          : staging(gpu).run(unit, lane, buffer, wait);
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
  queued_.push_back({gpu.device, done, name_of(unit), Clock::now(), std::move(checked)});
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
  const Device& device = *gpu(operation.request.device).device;
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

/// Forgets units that are over, up to the first that is not. Needs the lock.
void DevicePath::retire() {
  while (!queued_.empty()) {
    const Queued& oldest = queued_.front();
    const Device::Scope scope(*oldest.device);
    if (!oldest.device->reached(oldest.done)) {
      return;
    }
    if (oldest.checked != nullptr) {
      options_.finite->collect(*oldest.checked);
    }
    queued_.pop_front();
  }
}

bool DevicePath::busy() {
  const std::lock_guard lock(mutex_);
  retire();
  return !queued_.empty() || (options_.finite != nullptr && options_.finite->has_found());
}

void DevicePath::look_after() {
  const std::lock_guard lock(mutex_);
  retire();
  if (options_.finite != nullptr) {
    options_.finite->throw_found();
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
    const bool quiet = engine_->quiesce(deadline);
    collect_rest();
    return quiet;
  }
  std::vector<Gpu*> staged;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [ordinal, gpu] : gpus_) {
      if (gpu.staging != nullptr) {
        staged.push_back(&gpu);
      }
    }
  }
  bool quiet = true;
  for (Gpu* gpu : staged) {
    try {
      const Device::Scope scope(*gpu->device);
      quiet = gpu->staging->quiesce(deadline) && quiet;
    } catch (const Error&) {
      // The driver is shutting down: nothing is running.
    }
  }
  return quiet;
}

/// What was found in units that were not over when somebody looked last.
void DevicePath::collect_rest() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    retire();
  } catch (const std::exception&) {
    // The device has failed, or its driver has ended: its reports say nothing.
  }
}

void DevicePath::abort(const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  if (!aborted_) {
    aborted_ = status;
  }
  for (auto& [ordinal, gpu] : gpus_) {
    if (gpu.staging != nullptr) {
      gpu.staging->abort(*aborted_);
    }
  }
}

}  // namespace aiacc
