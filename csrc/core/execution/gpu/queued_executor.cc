#include "csrc/core/execution/gpu/queued_executor.h"

#include <utility>

#include "csrc/core/execution/gpu/staged_executor.h"

namespace aiacc {

QueuedExecutor::QueuedExecutor(DeviceEngine& engine, const DeviceOptions& options)
    : DeviceExecutor(options),
      engine_(engine),
      lanes_(options.lanes),
      checks_(options.finite != nullptr) {}

QueuedExecutor::~QueuedExecutor() {
  forget();
  group_.clear();  // what was started is memory of the GPUs, too
  for (auto& [ordinal, resources] : resources_) {
    end_on_gpu(*gpu(ordinal).device, std::move(resources));
  }
}

std::string QueuedExecutor::refusal(const Request& request) const {
  if (request.kind != OpKind::kAllreduce && request.kind != OpKind::kReducescatter) {
    return "";
  }
  const ReduceOp op = request.op == ReduceOp::kAverage ? ReduceOp::kSum : request.op;
  for (const TensorSpec& tensor : request.tensors) {
    std::string refusal = engine_.refusal({tensor.dtype, op, request.wire, request.wire_detail});
    if (!refusal.empty()) {
      return refusal;
    }
  }
  return "";
}

void QueuedExecutor::connect(Communicator& communicator) {
  communicator.gpu = std::make_unique<DeviceEngineCache>(
      engine_, communicator.ranks, communicator.rank, communicator.id);
}

void QueuedExecutor::run(Unit& unit, int lane, PackBuffer&, const Finished& finished) {
  const bool joined = unit.joined;
  try {
    start(unit, lane);
    if (joined) {
      return;
    }
    launch();
  } catch (...) {  // the operations of the group end with the job
    show_issuing(nullptr);
    for (std::size_t i = 0; i < grouped_; ++i) {
      group_[i]->work.reset();
    }
    grouped_ = 0;
    throw;
  }
  const std::size_t count = std::exchange(grouped_, 0);
  for (std::size_t i = 0; i < count; ++i) {
    group_[i]->work.reset();
    finished(group_[i]->unit, group_[i]->since);
    group_[i]->unit.communicator.reset();
  }
}

DeviceResources& QueuedExecutor::resources_on(int ordinal) {
  auto& resources = resources_[ordinal];
  if (resources == nullptr) {
    const Gpu& here = gpu(ordinal);
    const Device::Scope scope(*here.device);
    resources = std::make_unique<DeviceResources>(here.device, here.pool, checks_);
  }
  return *resources;
}

/// Queues what comes before the operation.
void QueuedExecutor::start(Unit& unit, int lane) {
  if (grouped_ == group_.size()) {
    group_.push_back(std::make_unique<Started>());
  }
  Started& started = *group_[grouped_++];
  std::swap(started.unit, unit);
  started.since = Clock::now();
  started.engine = &started.unit.communicator->gpu->on(*started.unit.devices());
  started.resources = &resources_on(started.engine->device(-1)->ordinal());
  started.lane = engine_lane(lane);
  const Device::Scope scope(*started.resources->device);
  started.work.emplace(started.unit, started.lane, *started.engine, *started.resources);
  started.work->prepare();
}

/// Issues the units of the group, which are on one engine, and queues what comes after.
void QueuedExecutor::launch() {
  DeviceEngine& engine = *group_.front()->engine;
  const std::shared_ptr<Device>& device = group_.front()->resources->device;
  const Device::Scope scope(*device);
  show_issuing(group_[grouped_ - 1].get());
  for (bool more = true; more;) {
    if (grouped_ > 1) {
      engine.begin_group();
    }
    for (std::size_t i = 0; i < grouped_; ++i) {
      group_[i]->work->issue();
    }
    if (grouped_ > 1) {
      engine.end_group();
    }
    more = false;
    for (std::size_t i = 0; i < grouped_; ++i) {
      more = group_[i]->work->go_on() || more;
    }
  }
  for (std::size_t i = 0; i < grouped_; ++i) {
    Started& started = *group_[i];
    const Mark done = started.work->complete();
    add(started.unit, {device, done, &engine, started.lane, started.work->take_checked()});
  }
  show_issuing(nullptr);
}

void QueuedExecutor::show_issuing(const Started* started) {
  const std::lock_guard lock(issuing_mutex_);
  issuing_ = started;
}

std::optional<UnitWait> QueuedExecutor::issuing() {
  const std::lock_guard lock(issuing_mutex_);
  if (issuing_ == nullptr) {
    return std::nullopt;
  }
  const Unit& unit = issuing_->unit;
  const LaneWait wait = issuing_->engine->issue_waits();
  return UnitWait{id_of(unit), name_of(unit), wait.seconds, unit.communicator->distance_to(wait)};
}

std::unique_ptr<DeviceExecutor> make_device_executor(DeviceEngine* engine,
                                                     const DeviceOptions& options) {
  if (engine != nullptr) {
    return std::make_unique<QueuedExecutor>(*engine, options);
  }
  return std::make_unique<StagedExecutor>(options);
}

}  // namespace aiacc
