#include "csrc/core/dispatch/dispatcher.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

namespace aiacc {
namespace {

/// "ALLREDUCE", as Horovod writes it in its timelines.
std::string phase_of(OpKind kind) {
  std::string phase = name_of(kind);
  for (char& letter : phase) {
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return phase;
}

}  // namespace

Dispatcher::Dispatcher(Engine& engine,
                       CommunicatorTable& communicators,
                       DeviceExecutor& gpus,
                       FiniteCheck* finite,
                       Timeline& timeline,
                       TensorTable& table,
                       std::function<void()> on_failure)
    : engine_(engine),
      communicators_(communicators),
      gpus_(gpus),
      finite_(finite),
      timeline_(timeline),
      table_(table),
      on_failure_(std::move(on_failure)),
      finished_unit_([this](Unit& unit, Clock::time_point start) { finish(unit, start); }),
      throughput_(engine) {
  const auto run = [this](Unit& unit, PackBuffer& buffer) { return run_unit(unit, buffer); };
  const auto prepare = [this](const Unit& unit) { prepare_unit(unit); };
  for (int lane = 0; lane <= engine.lanes(); ++lane) {
    lanes_.push_back(std::make_unique<Lane>(
        lane == engine.express_lane() ? "express" : "lane " + std::to_string(lane),
        run,
        gpus_.queues() ? Lane::Prepare() : prepare));
  }
  if (gpus_.queues()) {
    launcher_ = std::make_unique<Lane>("launch", run);
  }
}

void Dispatcher::dispatch(const std::vector<Response>& ready, const Parameters& parameters) {
  moving_.clear();
  finished_.clear();
  for (const Response& response : ready) {
    if (response.zeros != nullptr) {
      auto zeros = answer_with_zeros(response);
      if (!is_empty(*zeros)) {
        moving_.push_back(zeros.get());
        const std::lock_guard lock(zeros_mutex_);
        zeros_.emplace(zeros.get(), std::move(zeros));
      }
      continue;
    }
    auto* operation = static_cast<Operation*>(response.submitted);
    const Request& request = operation->request;
    take_response(*operation, response);
    if (timeline_.on()) {
      timeline_.record(request.name,
                       "NEGOTIATE_" + phase_of(request.kind),
                       "",
                       operation->submitted,
                       Clock::now(),
                       request.total_bytes());
    }
    if (!response.status.ok()) {
      table_.complete({operation}, response.status);
    } else if (changes_sets(request.kind)) {
      // What was agreed on before a set is removed still needs its communicator.
      plan_moving(parameters);
      change_process_sets(*operation, response);
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
  plan_moving(parameters);
}

void Dispatcher::change_process_sets(Operation& operation, const Response& response) {
  const Request& request = operation.request;
  Unit change;
  change.pieces = {{&operation, 0}};
  if (adds_set(request.kind)) {
    const auto id = static_cast<std::uint32_t>(response.value);
    if (!communicators_.add(id, {request.numbers.begin(), request.numbers.end()})) {
      table_.complete({&operation}, {});
      return;
    }
  } else if (response.value != 0) {
    const std::uint32_t id = set_to_remove(request);
    numbering_.erase(id);
    change.communicator = communicators_.remove(id);
  }
  operation.dispatched.store(true);
  if (changes_ == nullptr) {
    changes_ = std::make_unique<Lane>("sets",
                                      [this](Unit& unit, PackBuffer&) { return run_change(unit); });
  }
  changes_->push(change);
}

bool Dispatcher::run_change(Unit& unit) noexcept {
  if (stopped_.load()) {
    return false;
  }
  Operation* operation = unit.pieces.front().operation;
  try {
    unit.communicator.reset();  // ends the engine of a removed set, unless units still use it
    if (adds_set(operation->request.kind)) {
      communicators_.connect(static_cast<std::uint32_t>(operation->value));
    }
  } catch (...) {
    record_failure();
    return false;
  }
  table_.complete({operation}, {});
  return true;
}

void Dispatcher::clear_loads() {
  for (auto& [set, numbering] : numbering_) {
    numbering.loads.clear();
  }
}

/// Plans all of `moving_` and empties it.
void Dispatcher::plan_moving(const Parameters& parameters) {
  ++plans_;
  const auto before = [](const Operation* a, const Operation* b) {
    return a->request.process_set < b->request.process_set;
  };
  for (auto next = moving_.begin(); next != moving_.end(); ++next) {
    // Stable, and most often nothing moves. (std::stable_sort takes memory in a deprecated way.)
    std::rotate(std::upper_bound(moving_.begin(), next, *next, before), next, next + 1);
  }
  for (auto first = moving_.begin(); first != moving_.end();) {
    const auto last = std::upper_bound(first, moving_.end(), *first, before);
    const auto communicator = communicators_.find((*first)->request.process_set);
    AIACC_CHECK(communicator != nullptr && communicator->engine != nullptr);
    of_communicator_.assign(first, last);
    plan_communicator(communicator, parameters);
    first = last;
  }
  moving_.clear();
}

void Dispatcher::plan_communicator(const std::shared_ptr<const Communicator>& communicator,
                                   const Parameters& parameters) {
  // Sets prefer different lanes: they do not know of each other's loads.
  auto& [next_seq, loads, seeds] =
      numbering_.try_emplace(communicator->id, Numbering{0, LaneLoads(communicator->id)})
          .first->second;
  const int members = communicator->size();
  if (members == 1 || communicator->engine->slots(0).data != nullptr) {
    drop_wire_formats(of_communicator_, gpus_.queues(), members);
  }
  for (Operation* operation : of_communicator_) {
    if (is_coded(operation->request.wire)) {
      operation->seed = seeds.next(operation->request.name);
    }
  }
  const int exchanging = communicator->engine->exchanging(members);
  fill_planner_input(of_communicator_, gpus_.queues(), exchanging, planner_input_);
  plan_units(planner_input_.tensors,
             parameters,
             next_seq,
             static_cast<std::uint32_t>(engine_.express_lane()),
             loads,
             plan_);
  next_seq += plan_.count;
  units_.fetch_add(plan_.count, std::memory_order_relaxed);
  for (const PlannedUnit& unit : plan_) {
    data_bytes_.fetch_add(unit.wire_bytes, std::memory_order_relaxed);
    for (const Slice& slice : unit.slices) {
      planner_input_.pieces[slice.tensor].operation->slices_left.fetch_add(
          1, std::memory_order_relaxed);
    }
  }
  for (Operation* operation : of_communicator_) {
    operation->dispatched.store(true);
  }
  plan_launches();
  auto joined = joined_.begin();
  for (const PlannedUnit& planned : plan_) {
    unit_.plan = planned;
    unit_.order = plans_;
    unit_.communicator = communicator;
    unit_.algorithm = parameters.algorithm;
    unit_.finite = finite_;
    unit_.pieces.clear();
    for (const Slice& slice : planned.slices) {
      unit_.pieces.push_back(planner_input_.pieces[slice.tensor]);
    }
    const Piece& first = unit_.pieces.front();
    unit_.seed = seed_of_unit(first.operation->seed, first.tensor, planned.slices.front().offset);
    if (launches(first.request())) {
      unit_.joined = *joined++;
      launcher_->push(unit_);
    } else {
      push(unit_);
    }
  }
}

/// Which units of the plan are issued together, those of the launching thread counted alone.
void Dispatcher::plan_launches() {
  slots_.clear();
  const SharedPlacement* last = nullptr;
  for (const PlannedUnit& unit : plan_) {
    const Piece& first = planner_input_.pieces[unit.slices.front().tensor];
    if (!launches(first.request())) {
      continue;
    }
    const SharedPlacement& devices = first.operation->devices;
    const std::uint32_t before = slots_.empty() ? 0 : slots_.back().engine;
    const bool other = last != nullptr && !same_placement(*last, devices);
    slots_.push_back({before + (other ? 1 : 0), gpus_.launch_lane(unit.lane)});
    last = &devices;
  }
  plan_launch_groups(slots_, joined_);
}

/// Gives a unit to the lane that it is planned for, and an old one back.
void Dispatcher::push(Unit& unit) {
  Lane* lane = lanes_[unit.plan.lane].get();
  const auto is_wanted = [this](const Piece& piece) { return piece.operation == kept_for_; };
  const bool is_short = lane == lanes_.back().get() || unit.plan.bytes <= kept_bytes_;
  if (kept_ == nullptr && is_short &&
      std::any_of(unit.pieces.begin(), unit.pieces.end(), is_wanted)) {
    kept_ = lane;
  }
  lane->push(unit, lane != kept_);
}

Lane* Dispatcher::take_kept() {
  kept_for_ = nullptr;
  return std::exchange(kept_, nullptr);
}

void Dispatcher::prepare_unit(const Unit& unit) noexcept {
  if (stopped_.load() || !unit.pieces.front().request().on_gpu()) {
    return;
  }
  try {
    gpus_.prepare(unit, static_cast<int>(unit.plan.lane));
  } catch (...) {
    record_failure();
  }
}

/// In the thread of the lane or, on GPUs, whose it is.
bool Dispatcher::run_unit(Unit& unit, PackBuffer& buffer) noexcept {
  if (stopped_.load()) {
    return false;  // Its operations fail when the table is closed.
  }
  const auto lane = static_cast<int>(unit.plan.lane);
  try {
    if (unit.pieces.front().request().on_gpu()) {
      gpus_.run(unit, lane, buffer, finished_unit_);
      return true;
    }
    const auto start = Clock::now();
    execute_unit(unit, lane, buffer);
    const Request& first = unit.pieces.front().request();
    // Sums of all ranks alone: other operations move other shares of their bytes.
    if (unit.communicator->id == 0 && lane != engine_.express_lane() &&
        first.kind == OpKind::kAllreduce && first.op != ReduceOp::kAdasum) {
      throughput_.note(lane, unit.plan.wire_bytes, Clock::now() - start);
    }
    finish(unit, start);
    return true;
  } catch (...) {
    record_failure();
    return false;
  }
}

void Dispatcher::finish(Unit& unit, Clock::time_point start) {
  if (timeline_.on()) {
    const Request& first = unit.pieces.front().request();
    std::string name = first.name;
    if (unit.pieces.size() > 1) {
      name += " and " + std::to_string(unit.pieces.size() - 1) + " more";
    }
    timeline_.record(name,
                     phase_of(first.kind),
                     lanes_[unit.plan.lane]->name(),
                     start,
                     Clock::now(),
                     unit.plan.bytes);
  }
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

void Dispatcher::record_failure() noexcept {
  const Status status = current_exception_status();
  // These say that nothing was submitted. Here something was, and the job ends.
  const bool refused =
      status.code() == Code::kInvalidArgument || status.code() == Code::kUnsupported;
  record_failure(refused ? Status(Code::kEngine, status.message()) : status);
}

void Dispatcher::record_failure(const Status& status) noexcept {
  {
    const std::lock_guard lock(failure_mutex_);
    failure_ = failure_ ? failure_ : Failure{status, Clock::now()};
  }
  on_failure_();
}

std::vector<LaneReport> Dispatcher::host_reports(double limit_s) const {
  std::vector<LaneReport> reports;
  for (const auto& lane : lanes_) {
    if (auto report = lane->report(table_, limit_s)) {
      reports.push_back(std::move(*report));
    }
  }
  return reports;
}

/// The first unit on GPUs that is not over stands for all: what is behind it need not be looked at,
/// since this one ends or is found to be dead.
std::vector<LaneReport> Dispatcher::reports(double limit_s) {
  std::vector<LaneReport> reports = host_reports(limit_s);
  if (launcher_ == nullptr) {
    return reports;
  }
  // In this order: a unit is queued before the launching thread has done with it.
  const std::optional<UnitId> launching = launcher_->current();
  std::optional<UnitWait> unit = gpus_.issuing();
  if (auto queued = gpus_.first_queued()) {
    unit = std::move(queued);
  } else if (!unit && launching) {
    unit = UnitWait{*launching, ""};
  }
  if (unit) {
    reports.push_back(report_of(lanes_.size(), *unit, limit_s));
  }
  return reports;
}

std::optional<Dispatcher::Failure> Dispatcher::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

bool Dispatcher::drain(Clock::time_point deadline) {
  bool idle = true;
  for (const auto& lane : lanes_) {
    idle = lane->quiesce(deadline) && idle;
  }
  for (Lane* lane : {launcher_.get(), changes_.get()}) {
    if (lane != nullptr) {
      lane->quiesce(deadline);
    }
  }
  return idle;
}

void Dispatcher::stop(const Status& status) noexcept {
  stopped_.store(true);
  communicators_.abort(status);
  drain(Clock::time_point::max());
}

}  // namespace aiacc
