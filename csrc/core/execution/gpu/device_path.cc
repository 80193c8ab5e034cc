#include "csrc/core/execution/gpu/device_path.h"

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
    : engine_(engine), options_(std::move(options)), gpus_(setup()) {}

UsedGpus::Setup DevicePath::setup() const {
  UsedGpus::Setup setup;
  setup.open = [this](int ordinal) {
    return engine_ != nullptr
               ? engine_->open(ordinal)
               : Device::open_or_propose(options_.staging(), ordinal, options_.staged_device);
  };
  setup.kernels = engine_ != nullptr;
  setup.check = options_.finite != nullptr;
  setup.lanes = options_.lanes;
  return setup;
}

void DevicePath::refuse(const Request& request, const std::string& problem) const {
  throw Error(Code::kUnsupported,
              "[submit] " + operation_text(request.kind, request.process_set, request.name) +
                  " on GPU " + std::to_string(request.device) + ": " + problem);
}

/// Where this rank's tensors of a unit are.
UsedGpus::Gpu& DevicePath::own_gpu(const Unit& unit) {
  return gpus_.at(unit.devices()->at(static_cast<std::size_t>(unit.team->rank)));
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
  const std::shared_ptr<Device> device = gpus_.at(request.device).device;
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
  UsedGpus::Gpu& gpu = own_gpu(unit);
  const Device::Scope scope(*gpu.device);
  gpus_.staging_of(gpu).prepare(unit, lane, [&](const Unit& of, CudaStream stream) {
    wait_for_inputs(of, stream, *gpu.device);
  });
}

/// Lanes of the plan are those of the engine for host memory; an engine for GPUs may have fewer.
int DevicePath::lane_of(const DeviceEngine& engine, int lane) const {
  return lane + 1 == options_.lanes ? engine.express_lane() : lane % engine.lanes();
}

std::uint32_t DevicePath::launch_lane(std::uint32_t lane) const {
  return static_cast<std::uint32_t>(lane_of(*engine_, static_cast<int>(lane)) % engine_->lanes());
}

void DevicePath::run(const Unit& unit, int lane, PackBuffer& buffer) {
  UsedGpus::Gpu& gpu = own_gpu(unit);
  const Device::Scope scope(*gpu.device);
  const Mark done =
      gpus_.staging_of(gpu).run(unit, lane, buffer, [&](const Unit& of, CudaStream stream) {
        wait_for_inputs(of, stream, *gpu.device);
      });
  note(unit, gpu.device, done, nullptr);
}

void DevicePath::start(const Unit& unit, int lane) {
  DeviceEngine& engine = unit.team->gpu->on(*unit.devices());
  UsedGpus::Gpu& gpu = gpus_.at(engine.device(-1)->ordinal());
  const Device::Scope scope(*gpu.device);
  started_.push_back({unit,
                      engine,
                      gpu.device,
                      DeviceUnit(unit, lane_of(engine, lane), engine, gpus_.tools_of(gpu))});
  started_.back().work.prepare(
      [&](const Unit& of, CudaStream stream) { wait_for_inputs(of, stream, *gpu.device); });
}

void DevicePath::launch() {
  const Device::Scope scope(*started_.front().device);
  DeviceEngine& engine = started_.front().engine;
  const bool several = started_.size() > 1;
  if (several) {
    engine.begin_group();
  }
  for (Started& started : started_) {
    started.work.issue();
  }
  if (several) {
    engine.end_group();
  }
  for (Started& started : started_) {
    const Mark done = started.work.complete();
    note(started.unit, started.device, done, started.work.take_checked());
  }
  started_.clear();
}

/// The unit is on its way until the GPU has come to the mark.
void DevicePath::note(const Unit& unit,
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
  queued_.push_back({device, done, name_of(unit), Clock::now(), std::move(checked)});
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
  const Device& device = *gpus_.at(operation.request.device).device;
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
  Device& device = *gpus_.at(operation.request.device).device;
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
  bool quiet = true;
  for (UsedGpus::Gpu* gpu : gpus_.staged()) {
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

}  // namespace aiacc
