#include "csrc/core/dispatcher.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "csrc/base/log.h"

namespace aiacc {
namespace {

/// How long the GPU may take to leave what was aborted. Work of the framework may be before it.
constexpr std::chrono::seconds kAbortGpu{2};

/// "ALLREDUCE", as Horovod writes it in its timelines.
std::string phase_of(OpKind kind) {
  std::string phase = name_of(kind);
  std::transform(phase.begin(), phase.end(), phase.begin(), [](unsigned char letter) {
    return static_cast<char>(std::toupper(letter));
  });
  return phase;
}

}  // namespace

Dispatcher::Dispatcher(int rank,
                       int size,
                       Engine& engine,
                       DeviceEngine* gpu,
                       DevicePathOptions gpu_options,
                       Timeline& timeline,
                       TensorTable& table,
                       std::function<void()> on_failure)
    : engine_(engine),
      timeline_(timeline),
      table_(table),
      on_failure_(std::move(on_failure)),
      teams_(rank, size, engine, gpu),
      watch_(engine),
      device_path_(gpu, std::move(gpu_options)) {
  for (int lane = 0; lane <= engine_.express_lane(); ++lane) {
    const bool express = lane == engine_.express_lane();
    lanes_.push_back(std::make_unique<Lane>(
        express ? "express" : "lane " + std::to_string(lane),
        [this, lane](Unit& unit, PackBuffer& buffer) { run_unit(lane, unit, buffer); },
        device_path_.stages()
            ? Lane::Prepare([this, lane](const Unit& unit) { prepare_unit(lane, unit); })
            : Lane::Prepare()));
  }
  if (device_path_.queues()) {
    launcher_ = std::make_unique<Lane>("launch", [this](Unit& unit, PackBuffer& buffer) {
      run_unit(static_cast<int>(unit.plan.lane), unit, buffer);
    });
  }
}

void Dispatcher::dispatch(const std::vector<Agreement>& ready,
                          const Parameters& parameters,
                          Lane** helped) {
  const auto now = Clock::now();
  moving_.clear();
  finished_.clear();
  for (const Agreement& agreement : ready) {
    if (agreement.zeros != nullptr) {
      if (Operation* operation = answer_with_zeros(agreement)) {
        moving_.push_back(operation);
      }
      continue;
    }
    auto* operation = reinterpret_cast<Operation*>(agreement.ticket);
    const Request& request = operation->request;
    operation->ready = now;
    take_agreement(*operation, agreement);
    if (timeline_.on()) {
      timeline_.record(request.name,
                       "NEGOTIATE_" + phase_of(request.kind),
                       "negotiation",
                       operation->submitted,
                       now,
                       request.total_bytes());
    }
    if (!agreement.status.ok()) {
      table_.complete({operation}, agreement.status);
    } else if (request.kind == OpKind::kAddProcessSet ||
               request.kind == OpKind::kRemoveProcessSet) {
      // What was agreed on before a set is removed still needs its team.
      plan_moving(parameters, helped);
      change_process_sets(*operation, agreement);
    } else if (is_empty(*operation)) {
      if (request.kind == OpKind::kJoin) {
        table_.next_generation();
      }
      finished_.push_back(operation);
    } else {
      moving_.push_back(operation);
    }
  }
  if (!finished_.empty()) {
    table_.complete(finished_, {});
  }
  plan_moving(parameters, helped);
}

void Dispatcher::change_process_sets(Operation& operation, const Agreement& agreement) {
  const Request& request = operation.request;
  Unit change;
  change.pieces = {{&operation, 0}};
  if (request.kind == OpKind::kAddProcessSet) {
    const auto id = static_cast<std::uint32_t>(agreement.value);
    if (!teams_.add(id, {request.numbers.begin(), request.numbers.end()})) {
      table_.complete({&operation}, {});
      return;
    }
  } else if (agreement.value != 0) {
    const auto id = static_cast<std::uint32_t>(request.numbers.front());
    numbering_.erase(id);
    change.team = teams_.remove(id);
  }
  operation.dispatched.store(true);
  if (changes_ == nullptr) {
    changes_ =
        std::make_unique<Lane>("sets", [this](Unit& unit, PackBuffer&) { run_change(unit); });
  }
  changes_->push(change, true);
}

void Dispatcher::run_change(Unit& unit) noexcept {
  if (stopped_.load()) {
    return;
  }
  Operation* operation = unit.pieces.front().operation;
  try {
    unit.team.reset();  // ends the engine of a removed set, unless units still use it
    if (operation->request.kind == OpKind::kAddProcessSet) {
      teams_.connect(static_cast<std::uint32_t>(operation->value));
    }
  } catch (...) {
    record_failure();
    return;
  }
  table_.complete({operation}, {});
}

void Dispatcher::clear_loads() {
  for (auto& [set, numbering] : numbering_) {
    numbering.loads.clear();
  }
}

/// An operation of nobody, which gives zeros and whose result is dropped; null if it is empty.
Operation* Dispatcher::answer_with_zeros(const Agreement& agreement) {
  const Request& request = *agreement.zeros;
  auto operation = std::make_unique<Operation>();
  operation->request = request;
  operation->devices = agreement.devices;
  operation->more.resize(request.more.size());
  for (std::size_t i = 0; i < request.tensors(); ++i) {
    TensorBuffers& buffers = operation->tensor(i);
    if (request.on_gpu()) {
      continue;  // no memory means zeros there
    }
    buffers.gathered.assign(request.tensor(i).bytes(), 0);
    buffers.output = buffers.gathered.data();
    buffers.input = buffers.output;
  }
  if (is_empty(*operation)) {
    return nullptr;
  }
  const std::lock_guard lock(zeros_mutex_);
  Operation* raw = operation.get();
  zeros_.emplace(raw, std::move(operation));
  return raw;
}

/// Plans all of `moving_` and empties it.
void Dispatcher::plan_moving(const Parameters& parameters, Lane** helped) {
  const auto before = [](const Operation* a, const Operation* b) {
    return a->request.process_set < b->request.process_set;
  };
  for (auto next = moving_.begin(); next != moving_.end(); ++next) {
    // Stable, and most often nothing moves. (std::stable_sort takes memory in a deprecated way.)
    std::rotate(std::upper_bound(moving_.begin(), next, *next, before), next, next + 1);
  }
  for (auto first = moving_.begin(); first != moving_.end();) {
    const auto last = std::upper_bound(first, moving_.end(), *first, before);
    const auto team = teams_.find((*first)->request.process_set);
    AIACC_CHECK(team != nullptr && team->engine != nullptr);
    of_team_.assign(first, last);
    plan_team(team, parameters, helped);
    first = last;
  }
  moving_.clear();
}

void Dispatcher::plan_team(const std::shared_ptr<const Team>& team,
                           const Parameters& parameters,
                           Lane** helped) {
  // Sets prefer different lanes: they do not know of each other's loads.
  auto& [next_seq, loads] =
      numbering_.try_emplace(team->id, Numbering{0, LaneLoads(team->id)}).first->second;
  plan_items(of_team_, items_);
  plan_units(items_.items,
             parameters,
             next_seq,
             static_cast<std::uint32_t>(engine_.express_lane()),
             loads,
             plan_);
  next_seq += plan_.count;
  units_.fetch_add(plan_.count, std::memory_order_relaxed);
  for (const PlannedUnit& unit : plan_) {
    data_bytes_.fetch_add(unit.bytes, std::memory_order_relaxed);
    for (const Slice& slice : unit.slices) {
      items_.pieces[slice.item].operation->slices_left.fetch_add(1, std::memory_order_relaxed);
    }
  }
  for (Operation* operation : of_team_) {
    operation->dispatched.store(true);
  }
  for (const PlannedUnit& planned : plan_) {
    unit_.plan = planned;
    unit_.team = team;
    unit_.algorithm = parameters.algorithm;
    unit_.finite = device_path_.finite();
    unit_.pieces.clear();
    for (const Slice& slice : planned.slices) {
      unit_.pieces.push_back(items_.pieces[slice.item]);
    }
    if (launcher_ != nullptr && unit_.pieces.front().request().on_gpu()) {
      launcher_->push(unit_, true);
      continue;
    }
    Lane* lane = lanes_[planned.lane].get();
    // A caller that will wait anyway runs one lane itself instead of waking its worker.
    if (helped != nullptr && *helped == nullptr) {
      *helped = lane;
    }
    lane->push(unit_, helped == nullptr || *helped != lane);
  }
}

void Dispatcher::prepare_unit(int lane, const Unit& unit) noexcept {
  if (stopped_.load() || !unit.pieces.front().request().on_gpu()) {
    return;
  }
  try {
    device_path_.prepare(unit, lane);
  } catch (...) {
    record_failure();
  }
}

void Dispatcher::run_unit(int lane, Unit& unit, PackBuffer& buffer) noexcept {
  if (stopped_.load()) {
    return;  // Its operations fail when the table is closed.
  }
  const auto start = Clock::now();
  try {
    if (unit.pieces.front().request().on_gpu()) {
      device_path_.run(unit, lane, buffer);
    } else {
      execute_unit(unit, lane, buffer);
    }
  } catch (...) {
    record_failure();
    return;
  }
  const auto end = Clock::now();
  const Request& first = unit.pieces.front().request();
  // Sums of all ranks alone: other operations move other shares of their bytes.
  if (unit.team->id == 0 && lane != engine_.express_lane() && !first.on_gpu() &&
      first.kind == OpKind::kAllreduce && first.op != ReduceOp::kAdasum) {
    watch_.note(lane, unit.plan.bytes, end - start);
  }
  if (timeline_.on()) {
    std::string name = first.name;
    if (unit.pieces.size() > 1) {
      name += " and " + std::to_string(unit.pieces.size() - 1) + " more";
    }
    timeline_.record(name,
                     phase_of(first.kind),
                     lanes_[static_cast<std::size_t>(lane)]->name(),
                     start,
                     end,
                     unit.plan.bytes);
  }
  finish(unit);
}

void Dispatcher::finish(Unit& unit) {
  finished_units_.fetch_add(1);
  unit.finished.clear();
  for (const Piece& piece : unit.pieces) {
    if (piece.operation->slices_left.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      continue;
    }
    if (piece.operation->handle != 0) {
      unit.finished.push_back(piece.operation);
    } else {
      const std::lock_guard lock(zeros_mutex_);
      zeros_.erase(piece.operation);
    }
  }
  if (!unit.finished.empty()) {
    table_.complete(unit.finished, {});
  }
}

void Dispatcher::help(const Operation& operation) {
  for (const auto& lane : lanes_) {
    if (operation.done.load()) {
      return;
    }
    lane->help();
  }
}

void Dispatcher::record_failure() noexcept {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) {
      Status status = current_exception_status();
      if (status.code() == Code::kInvalidArgument || status.code() == Code::kUnsupported) {
        // These say that nothing was submitted. Here something was, and the job ends.
        status = {Code::kEngine, status.message()};
      }
      failure_ = {std::move(status), Clock::now()};
    }
  }
  on_failure_();
}

std::optional<Dispatcher::Failure> Dispatcher::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

void Dispatcher::look_after_gpu() {
  if (device_path_.busy()) {
    teams_.check_gpu();
    device_path_.look_after();
  }
}

void Dispatcher::drain(Clock::time_point deadline) {
  for (const auto& lane : lanes_) {
    lane->quiesce(deadline);
  }
  for (Lane* lane : {launcher_.get(), changes_.get()}) {
    if (lane != nullptr) {
      lane->quiesce(deadline);
    }
  }
}

void Dispatcher::drain_gpu(Clock::time_point deadline) noexcept {
  if (!device_path_.quiesce(deadline)) {
    AIACC_LOG(kWarning) << "[gpu] the GPU has not done what is queued; its results are incomplete";
  }
}

void Dispatcher::stop(const Status& status) noexcept {
  stopped_.store(true);
  teams_.abort(status);
  device_path_.abort(status);
  drain(Clock::time_point::max());
  drain_gpu(Clock::now() + kAbortGpu);
}

}  // namespace aiacc
