#include "csrc/core/coordinator.h"

#include <sys/prctl.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "csrc/base/log.h"

namespace aiacc {
namespace {

/// After a wait the background thread leaves the sockets to the caller for this long: a loop of
/// blocking calls is not slowed down by a second thread that wakes up beside it.
constexpr std::chrono::microseconds kGrace{500};

/// The same while a caller sleeps on the only operation there is: no round can be of use to it.
constexpr std::chrono::microseconds kLongGrace{10'000};

/// A lost lane connection is a symptom; how long the control plane has to name the cause.
constexpr std::chrono::milliseconds kCauseGrace{300};

/// How long units in flight may go on after an orderly shutdown somewhere.
constexpr std::chrono::milliseconds kDrain{1000};

Clock::duration tick_of(const CoordinatorOptions& options) {
  double tick_s = options.peer_timeout_s / 4;
  for (const double limit : {options.stall_warn_s, options.stall_fail_s}) {
    if (limit > 0) {
      tick_s = std::min(tick_s, limit / 2);
    }
  }
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(tick_s));
}

std::uint64_t nanoseconds_since(Clock::time_point start) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

bool packs_with(const Request& a, const Request& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.device == b.device && a.process_set == b.process_set && a.prescale == b.prescale &&
         a.postscale == b.postscale;
}

/// Whether bytes move at all; otherwise agreement is all there is to it.
bool is_empty(const Operation& operation) {
  if (operation.request.kind == OpKind::kBarrier) {
    return true;
  }
  if (operation.request.kind != OpKind::kAllgather) {
    return operation.request.bytes() == 0;
  }
  const auto& extents = operation.first_extents;
  const bool no_rows = std::all_of(extents.begin(), extents.end(), [](auto n) { return n == 0; });
  const auto& shape = operation.request.shape;
  return no_rows || std::find(shape.begin() + 1, shape.end(), 0) != shape.end();
}

/// What the other ranks could not decode, or the engine not do, must not leave this rank: there it
/// would end the job.
void check_request(const Request& request, int size) {
  std::string problem;
  if (request.name.size() > kMaxNameBytes) {
    problem = "a name of " + std::to_string(request.name.size()) + " bytes (expected at most " +
              std::to_string(kMaxNameBytes) + ")";
  } else if (request.shape.size() > kMaxDimensions) {
    problem = std::to_string(request.shape.size()) + " dimensions (expected at most " +
              std::to_string(kMaxDimensions) + ")";
  } else if (request.kind == OpKind::kAllgather && request.shape.empty()) {
    problem = "an allgather of a scalar (expected a dimension to concatenate along)";
  } else if (request.kind == OpKind::kBroadcast && (request.root < 0 || request.root >= size)) {
    problem = "root rank " + std::to_string(request.root) + " (expected 0.." +
              std::to_string(size - 1) + ")";
  }
  if (!problem.empty()) {
    throw Error(Code::kInvalidArgument,
                "[submit] tensor '" + request.name.substr(0, 100) + "': " + problem);
  }
}

void check_parameters(const Parameters& parameters, int lanes) {
  if (parameters.unit_bytes == 0 || parameters.lanes == 0 ||
      parameters.lanes > static_cast<std::uint32_t>(lanes)) {
    throw Error(Code::kInvalidArgument,
                "[core] unit_bytes " + std::to_string(parameters.unit_bytes) + ", lanes " +
                    std::to_string(parameters.lanes) + " (expected unit_bytes > 0 and lanes 1.." +
                    std::to_string(lanes) + ")");
  }
}

std::uint64_t planned_bytes(const Operation& operation) {
  const Request& request = operation.request;
  if (request.kind != OpKind::kAllgather) {
    return request.bytes();
  }
  std::uint64_t row = size_of(request.dtype);
  for (std::size_t d = 1; d < request.shape.size(); ++d) {
    row *= static_cast<std::uint64_t>(request.shape[d]);
  }
  std::uint64_t rows = 0;
  for (const std::int64_t extent : operation.first_extents) {
    rows += static_cast<std::uint64_t>(extent);
  }
  return rows * row;
}

}  // namespace

Coordinator::Coordinator(ControlPlane& plane,
                         Engine& engine,
                         Timeline& timeline,
                         CoordinatorOptions options)
    : plane_(plane),
      engine_(engine),
      timeline_(timeline),
      options_(std::move(options)),
      tick_(tick_of(options_)),
      unit_bytes_(options_.parameters.unit_bytes),
      negotiator_(plane.rank(), plane.size(), options_.cache_capacity, options_.parameters),
      stalls_(options_.stall_warn_s, options_.stall_fail_s) {
  check_parameters(options_.parameters, engine_.lanes());
  for (int lane = 0; lane <= engine_.express_lane(); ++lane) {
    const bool express = lane == engine_.express_lane();
    lanes_.push_back(std::make_unique<Lane>(
        express ? "express" : "lane " + std::to_string(lane),
        [this, lane](Unit& unit, PackBuffer& buffer) { run_unit(lane, unit, buffer); }));
  }
  background_ = std::thread([this] { background(); });
}

Handle Coordinator::submit(std::shared_ptr<Operation> operation) {
  check_request(operation->request, plane_.size());
  const std::uint64_t bytes = operation->request.bytes();
  std::uint64_t queued = 0;
  bool first = false;
  const Handle handle = table_.submit(std::move(operation), queued, first);
  const std::uint64_t enough = unit_bytes_.load(std::memory_order_relaxed);
  if (queued >= enough && queued - bytes < enough) {
    plane_.wake();
  } else if (first) {
    plane_.wake_at(Clock::now() + options_.linger);
  }
  return handle;
}

bool Coordinator::poll(Handle handle) const { return table_.find(handle)->done.load(); }

void Coordinator::flush() {
  flush_.store(true);
  if (table_.has_queued()) {
    plane_.wake();
  }
}

void Coordinator::propose(const Parameters& parameters) {
  check_parameters(parameters, engine_.lanes());
  {
    // Not the driver's mutex: a driver keeps it while it waits for other ranks.
    const std::lock_guard lock(proposal_mutex_);
    proposal_ = parameters;
  }
  plane_.wake();
}

std::shared_ptr<Operation> Coordinator::wait(Handle handle, const std::function<void()>& on_tick) {
  std::shared_ptr<Operation> operation = table_.find(handle);
  if (!operation->done.load()) {
    wait_until_done(*operation, on_tick);
  }
  if (!operation->status.ok()) {
    const Status status = operation->status;
    table_.release(handle);
    throw Error(status);
  }
  return operation;
}

void Coordinator::wait_until_done(const Operation& operation,
                                  const std::function<void()>& on_tick) {
  struct Waiting {
    explicit Waiting(Coordinator& owner) : coordinator(owner) {
      coordinator.waiting_callers_.fetch_add(1);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() {
      coordinator.waiting_callers_.fetch_sub(1);
      coordinator.claim_expiry_.store(Clock::now() + kGrace);
      coordinator.wait_ns_.fetch_add(nanoseconds_since(start), std::memory_order_relaxed);
    }
    Coordinator& coordinator;
    Clock::time_point start = Clock::now();
  };
  const Waiting waiting(*this);
  flush_.store(true);
  while (true) {
    const auto deadline = Clock::now() + tick_;
    drive_for(operation, deadline);
    if (table_.wait(operation, deadline)) {
      return;
    }
    plane_.wake();  // Somebody has to look after the peers while this thread sleeps.
    if (on_tick) {
      on_tick();
    }
  }
}

/// Negotiates in the calling thread until the operation is on its way, then helps to move it.
void Coordinator::drive_for(const Operation& operation, Clock::time_point deadline) {
  std::unique_lock lock(driver_, std::try_to_lock);
  if (!lock.owns_lock()) {
    plane_.wake();  // Another thread drives; make it look at the flush.
    return;
  }
  if (failed_.load()) {
    return;
  }
  Lane* helped = nullptr;
  plane_.claim();
  try {
    while (true) {
      step(&helped, &operation);
      if (operation.done.load() || operation.dispatched.load() || Clock::now() >= deadline) {
        break;
      }
      if (helped != nullptr) {
        // What is waited for may need these units first: on another rank, in another thread.
        std::exchange(helped, nullptr)->start();
      }
      plane_.wait_claimed(next_deadline());
    }
  } catch (...) {
    fail(current_exception_status());
  }
  leave_to_callers();
  lock.unlock();
  if (flush_.load() && table_.has_queued()) {
    plane_.wake();  // Another thread's flush came during the last round.
  }
  if (helped != nullptr) {
    helped->help();
  }
  for (const auto& lane : lanes_) {
    if (operation.done.load()) {
      return;
    }
    lane->help();
  }
}

void Coordinator::background() {
  prctl(PR_SET_NAME, "aiacc coord");
  auto deadline = Clock::time_point::max();
  while (true) {
    plane_.wait(deadline);
    const std::lock_guard lock(driver_);
    plane_.take_wakes();
    if (failed_.load()) {
      return;
    }
    try {
      if (stopping_.load()) {
        throw Error(Code::kShutdown,
                    "[core] rank " + std::to_string(plane_.rank()) +
                        " has shut down; call init on every rank to go on");
      }
      throw_lane_failure();
      if (Clock::now() < claim_expiry_.load() && !want_round()) {
        plane_.claim();
        plane_.unclaim_after(kGrace);
      } else {
        plane_.unclaim();
        step(nullptr, nullptr);
        if (waiting_callers_.load() > 0 && negotiator_.waiting() == 0) {
          leave_to_callers();
        }
      }
      deadline = next_deadline();
    } catch (...) {
      fail(current_exception_status());
      return;
    }
  }
}

/// Keeps the background thread out of the next rounds: a caller is likely to drive them.
void Coordinator::leave_to_callers() {
  plane_.claim();
  claim_expiry_.store(Clock::now() + (table_.in_flight() == 1 ? kLongGrace : kGrace));
  plane_.unclaim_after(kGrace);
}

/// Does all there is to do now, without waiting for anything but running rounds.
void Coordinator::step(Lane** helped, const Operation* wanted) {
  plane_.service();
  throw_lane_failure();
  while (want_round()) {
    run_round(helped);
    if (wanted != nullptr && (wanted->done.load() || wanted->dispatched.load())) {
      return;  // The next round may wait for a rank that this caller does not wait for.
    }
    plane_.service();
  }
  look_after_peers_and_stalls();
}

bool Coordinator::want_round() {
  {
    const std::lock_guard lock(proposal_mutex_);
    if (proposal_) {
      negotiator_.propose(*std::exchange(proposal_, std::nullopt));
    }
  }
  if (plane_.round_pending() || negotiator_.urgent()) {
    return true;
  }
  if (!table_.has_queued()) {
    // Somebody may submit and flush between these two lines: then the flush counts.
    flush_.exchange(false);
    return table_.has_queued();
  }
  return flush_.load() || table_.queued_bytes() >= unit_bytes_.load(std::memory_order_relaxed) ||
         Clock::now() >= table_.queued_since() + options_.linger;
}

void Coordinator::run_round(Lane** helped) {
  const auto start = Clock::now();
  flush_.store(false);
  table_.drain(drained_);
  for (Operation* operation : drained_) {
    negotiator_.submit(operation->request, reinterpret_cast<std::uint64_t>(operation));
  }
  negotiator_.contribute(message_);
  plane_.all_reduce(message_, combine_rounds);
  const RoundOutcome outcome = negotiator_.apply(message_);
  check_parameters(negotiator_.parameters(), engine_.lanes());
  unit_bytes_.store(negotiator_.parameters().unit_bytes, std::memory_order_relaxed);
  if (timeline_.marks_rounds()) {
    timeline_.record("round", "rounds", start, Clock::now(), message_.size());
  }
  dispatch(outcome.ready, helped);
  if (!outcome.answers.empty()) {
    report_stalls(outcome.answers);
  }
}

void Coordinator::dispatch(const std::vector<Agreement>& ready, Lane** helped) {
  const auto now = Clock::now();
  std::vector<Operation*> moving;
  std::vector<Operation*> finished;
  for (const Agreement& agreement : ready) {
    auto* operation = reinterpret_cast<Operation*>(agreement.ticket);
    operation->ready = now;
    operation->first_extents = agreement.first_extents;
    if (timeline_.on()) {
      timeline_.record(operation->request.name,
                       "negotiation",
                       operation->submitted,
                       now,
                       operation->request.bytes());
    }
    if (!agreement.status.ok()) {
      table_.complete({operation}, agreement.status);
    } else if (is_empty(*operation)) {
      finished.push_back(operation);
    } else {
      moving.push_back(operation);
    }
  }
  tensors_.fetch_add(ready.size(), std::memory_order_relaxed);
  if (!finished.empty()) {
    table_.complete(finished, {});
  }
  if (!moving.empty()) {
    plan(moving, helped);
  }
}

void Coordinator::plan(const std::vector<Operation*>& ready, Lane** helped) {
  std::vector<PlanItem> items;
  std::vector<const Request*> classes;
  items.reserve(ready.size());
  for (const Operation* operation : ready) {
    const Request& request = operation->request;
    std::size_t pack_class = 0;
    while (pack_class < classes.size() && !packs_with(*classes[pack_class], request)) {
      ++pack_class;
    }
    if (pack_class == classes.size()) {
      classes.push_back(&request);
    }
    const bool gather = request.kind == OpKind::kAllgather;
    items.push_back({planned_bytes(*operation),
                     static_cast<std::uint32_t>(size_of(request.dtype)),
                     static_cast<std::uint32_t>(pack_class),
                     !gather,
                     !gather});
  }
  const auto planned = plan_units(items,
                                  negotiator_.parameters(),
                                  next_seq_,
                                  static_cast<std::uint32_t>(engine_.express_lane()));
  next_seq_ += planned.size();
  units_.fetch_add(planned.size(), std::memory_order_relaxed);
  for (const PlannedUnit& unit : planned) {
    data_bytes_.fetch_add(unit.bytes, std::memory_order_relaxed);
    for (const Slice& slice : unit.slices) {
      ready[slice.item]->units_left.fetch_add(1, std::memory_order_relaxed);
    }
  }
  for (Operation* operation : ready) {
    operation->dispatched.store(true);
  }
  for (const PlannedUnit& planned_unit : planned) {
    Unit unit;
    unit.plan = planned_unit;
    for (const Slice& slice : planned_unit.slices) {
      unit.operations.push_back(ready[slice.item]);
    }
    Lane* lane = lanes_[planned_unit.lane].get();
    // A caller that will wait anyway runs one lane itself instead of waking its worker.
    if (helped != nullptr && *helped == nullptr) {
      *helped = lane;
    }
    lane->push(std::move(unit), helped == nullptr || *helped != lane);
  }
}

void Coordinator::run_unit(int lane, Unit& unit, PackBuffer& buffer) noexcept {
  if (failed_.load()) {
    return;  // `fail` completes the operations.
  }
  const auto start = Clock::now();
  try {
    execute_unit(unit, engine_, lane, plane_.rank(), plane_.size(), buffer);
  } catch (...) {
    {
      const std::lock_guard lock(lane_failure_mutex_);
      if (!lane_failure_) {
        lane_failure_ = {current_exception_status(), Clock::now()};
      }
    }
    plane_.wake();
    return;
  }
  if (timeline_.on()) {
    std::string name = unit.operations.front()->request.name;
    if (unit.operations.size() > 1) {
      name += " and " + std::to_string(unit.operations.size() - 1) + " more";
    }
    timeline_.record(
        name, lanes_[static_cast<std::size_t>(lane)]->name(), start, Clock::now(), unit.plan.bytes);
  }
  std::vector<Operation*> finished;
  for (Operation* operation : unit.operations) {
    if (operation->units_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      finished.push_back(operation);
    }
  }
  if (!finished.empty()) {
    table_.complete(finished, {});
  }
}

void Coordinator::throw_lane_failure() {
  const std::lock_guard lock(lane_failure_mutex_);
  if (lane_failure_ && (lane_failure_->status.code() != Code::kPeerLost ||
                        Clock::now() >= lane_failure_->when + kCauseGrace)) {
    throw Error(lane_failure_->status);
  }
}

void Coordinator::look_after_peers_and_stalls() {
  const auto now = Clock::now();
  if (now < looked_ + tick_) {
    return;
  }
  if (table_.in_flight() == 0) {
    return;
  }
  looked_ = now;
  plane_.check_peers();
  if (stalls_.should_ask(table_.undispatched(), now)) {
    negotiator_.ask_for_stalls();
    do {
      run_round(nullptr);  // the question, then the answers
    } while (want_round());
  }
}

void Coordinator::report_stalls(const std::vector<Report>& answers) {
  for (const Stall& stall : stalls_.inspect(table_.undispatched(), answers, Clock::now())) {
    if (stall.missing.empty()) {
      continue;
    }
    AIACC_LOG(kWarning) << stall_text(stall);
    if (!options_.stall_file.empty()) {
      std::ofstream(options_.stall_file, std::ios::app) << stall_json(stall) << '\n';
    }
    if (stalls_.is_fatal(stall)) {
      throw Error(Code::kTimeout, stall_text(stall));
    }
  }
}

Clock::time_point Coordinator::next_deadline() {
  auto deadline = Clock::time_point::max();
  if (table_.in_flight() > 0) {
    deadline = Clock::now() + tick_;
  }
  if (table_.has_queued()) {
    deadline = std::min(deadline, table_.queued_since() + options_.linger);
  }
  const std::lock_guard lock(lane_failure_mutex_);
  if (lane_failure_) {
    deadline = std::min(deadline, lane_failure_->when + kCauseGrace);
  }
  return deadline;
}

/// The driver's. Buffers of failed operations are not touched any more when this returns.
void Coordinator::fail(const Status& status) noexcept {
  if (failed_.load()) {
    return;
  }
  const bool orderly = status.code() == Code::kShutdown;
  plane_.abort(status);
  if (orderly) {
    const auto deadline = Clock::now() + kDrain;
    for (const auto& lane : lanes_) {
      lane->quiesce(deadline);
    }
  } else {
    AIACC_LOG(kError) << status.message();
  }
  failed_.store(true);
  engine_.abort(status);
  for (const auto& lane : lanes_) {
    lane->quiesce(Clock::time_point::max());
  }
  table_.close(status);
  plane_.wake();
}

void Coordinator::shutdown() {
  const std::lock_guard guard(shutdown_mutex_);
  if (!background_.joinable()) {
    return;
  }
  stopping_.store(true);
  plane_.interrupt({Code::kShutdown,
                    "[core] rank " + std::to_string(plane_.rank()) +
                        " has shut down; call init on every rank to go on"});
  plane_.wake();
  background_.join();
}

CoordinatorStats Coordinator::stats() const {
  return {tensors_.load(), units_.load(), data_bytes_.load(), wait_ns_.load()};
}

}  // namespace aiacc
