// What the progress thread does: rounds, and looking after the job between them.

#include <algorithm>
#include <string>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/core/coordinator.h"

namespace aiacc {
namespace {

/// How much longer the grace is while a caller sleeps on the only operation there is: no round can
/// be of use to it.
constexpr int kLongGrace = 20;

/// So much takes little longer than the two thread switches that a caller saves by moving it
/// itself. Among process sets it may: a lane of another rank may be taken by a unit of another set.
constexpr std::uint64_t kOwnBytes = std::uint64_t{256} << 10;

/// A lost lane connection is a symptom; how long the control plane has to name the cause.
constexpr std::chrono::milliseconds kCauseGrace{300};

/// How long units in flight may go on after an orderly shutdown somewhere, and while bytes move:
/// the last ones of the rank that has left may have a slow way. Less than aiaccrun waits.
constexpr std::chrono::milliseconds kDrain{1000};
constexpr std::chrono::milliseconds kDrainMoving{4000};

/// The same for what is queued on a GPU, where much may be before it.
constexpr std::chrono::seconds kDrainGpu{5};

/// How long the GPU may take to abandon aborted work; kernels of the framework may be queued before
/// it.
constexpr std::chrono::seconds kAbortGpu{2};

}  // namespace

/// Negotiates in the calling thread until the operation is on its way, then helps to move it.
void Coordinator::drive_for(const Operation& operation, Clock::time_point deadline) {
  std::unique_lock lock(progress_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    plane_.wake();  // Another thread makes progress; make it look at the flush.
    return;
  }
  if (failed_.load()) {
    return;
  }
  Lanes& lanes = dispatcher_.lanes();
  if (!operation.request.on_gpu()) {  // whose units wait for what the framework has queued there
    const bool is_short = !has_sets_.load() && operation.request.total_bytes() <= kOwnBytes;
    lanes.keep_for(operation, is_short ? kOwnBytes : 0);
  }
  plane_.claim();
  try {
    while (true) {
      step(&operation);
      if (operation.done.load() || operation.dispatched.load() || Clock::now() >= deadline) {
        break;
      }
      lanes.start_kept();
      plane_.wait_claimed(next_deadline());
    }
  } catch (...) {
    fail(reported_by(plane_.rank(), current_exception_status()));
  }
  Lane* helped = lanes.take_kept();
  leave_to_callers();
  lock.unlock();
  if (flush_.load() && table_.has_queued()) {
    plane_.wake();  // Another thread's flush came during the last round.
  }
  if (helped != nullptr) {
    helped->help(operation);  // It was not woken: nobody else would.
  }
}

void Coordinator::background() {
  auto deadline = Clock::time_point::max();
  while (true) {
    plane_.wait(deadline);
    const std::lock_guard lock(progress_mutex_);
    plane_.take_wakes();
    if (failed_.load()) {
      return;
    }
    try {
      throw_lane_failure();
      if (stopping_.load()) {
        throw Error(end_status());
      }
      if (Clock::now() < claim_expiry_.load() && !want_round()) {
        plane_.claim();
        plane_.unclaim_after(options_.grace);
      } else {
        plane_.unclaim();
        step(nullptr);
        if (waiting_callers_.load() > 0 && negotiator_.waiting() == 0 && !has_sets_.load()) {
          leave_to_callers();
        }
      }
      deadline = next_deadline();
    } catch (...) {
      fail(reported_by(plane_.rank(), current_exception_status()));
      return;
    }
  }
}

/// Keeps the background thread out of the next rounds: a caller is likely to run them.
void Coordinator::leave_to_callers() {
  plane_.claim();
  const bool is_long = table_.in_flight() == 1 && !has_sets_.load();
  claim_expiry_.store(Clock::now() + options_.grace * (is_long ? kLongGrace : 1));
  plane_.unclaim_after(options_.grace);
}

/// Ends that at once: a caller that sleeps makes no progress, and the members of another process
/// set may need rounds meanwhile.
void Coordinator::take_from_callers() {
  if (Clock::now() < claim_expiry_.load()) {
    claim_expiry_.store({});
    plane_.wake();
  }
}

/// Does all there is to do now, without waiting for anything but running rounds.
void Coordinator::step(const Operation* wanted) {
  plane_.service();
  throw_lane_failure();
  while (want_round()) {
    run_round();
    if (wanted != nullptr && (wanted->done.load() || wanted->dispatched.load())) {
      return;  // The next round may wait for a rank that this caller does not wait for.
    }
    dispatcher_.lanes().start_kept();
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
  if (negotiator_.urgent() || (plane_.round_pending() && !is_vain())) {
    return true;
  }
  if (!table_.has_queued()) {
    // An empty flush is complete, unless a submission that it was meant for has just arrived.
    const bool flushed = flush_.exchange(false);
    if (flushed || !table_.has_queued()) {
      return table_.has_queued();
    }
  }
  return flush_.load() || table_.queued_bytes() >= unit_bytes_.load(std::memory_order_relaxed) ||
         Clock::now() >= table_.queued_since() + options_.linger;
}

/// Whether units are under way on this rank, also on its GPUs.
bool Coordinator::busy() { return dispatcher_.busy() || device_path_.busy(); }

/// Whether the pending round must end without a ready tensor: all of them need this rank, which has
/// submitted nothing, unless others form a process set among themselves. So a step in which ranks
/// submit the same tensors in the same order has at most one round for each of them, however far
/// the ranks are apart.
bool Coordinator::is_vain() {
  if (table_.has_queued() || negotiator_.waiting() > 0 || negotiator_.process_sets().size() > 1) {
    return false;
  }
  if ((plane_.pending_flags() & kFlagForming) != 0) {
    return false;
  }
  if (vain_since_ == Clock::time_point{}) {
    vain_since_ = Clock::now();
    plane_.wake_at(vain_since_ + options_.patience);
  }
  return Clock::now() < vain_since_ + options_.patience;
}

void Coordinator::run_round() {
  const auto start = Clock::now();
  vain_since_ = {};
  flush_.store(false);
  const std::uint32_t state =
      (busy() ? kFlagBusy : 0U) | (plane_.pending_flags() & kFlagForming);  // for those behind it
  table_.drain(drained_);
  for (Operation* operation : drained_) {
    negotiator_.submit(operation->request, reinterpret_cast<std::uint64_t>(operation));
  }
  propose_weights();
  if (negotiator_.answer_due()) {
    negotiator_.answer_with(dispatcher_.reports(unit_watch_.limit_s(Clock::now())));
  }
  negotiator_.contribute(message_, state);
  plane_.all_reduce(message_, combine_rounds);
  const RoundOutcome& outcome = negotiator_.apply(message_);
  check_parameters(negotiator_.parameters(), static_cast<std::uint32_t>(engine_.lanes()));
  publish(negotiator_.parameters());
  has_sets_.store(negotiator_.process_sets().size() > 1);
  if (timeline_.marks_rounds()) {
    timeline_.record("round", "CYCLE_START", "rounds", start, Clock::now(), message_.size());
  }
  tensors_.fetch_add(outcome.ready.size(), std::memory_order_relaxed);
  if ((outcome.flags & kFlagBusy) == 0) {
    dispatcher_.clear_loads();
  }
  dispatcher_.dispatch(outcome.ready, negotiator_.parameters());
  if (!outcome.answers.ranks.empty()) {
    report_stalls(outcome.answers);
  }
}

/// When some lane is much slower than the others. Whoever notices proposes; that of the lowest rank
/// counts, and the others start to measure anew with it.
void Coordinator::propose_weights() {
  Parameters parameters = negotiator_.parameters();
  const auto weights = dispatcher_.suggest_weights(parameters);
  if (!weights || negotiator_.has_proposal()) {
    return;
  }
  parameters.weights = *weights;
  negotiator_.propose(parameters);
  std::string text;
  for (std::uint32_t lane = 0; lane < parameters.lanes; ++lane) {
    text += (lane == 0 ? "" : ", ") + std::to_string((*weights)[lane]);
  }
  AIACC_LOG(kInfo) << "[core] the lanes differ in speed; proposed weights: " << text;
}

void Coordinator::throw_lane_failure() {
  const auto failure = dispatcher_.failure();
  if (failure &&
      (failure->status.code() != Code::kPeerLost || Clock::now() >= failure->when + kCauseGrace)) {
    throw Error(failure->status);
  }
}

void Coordinator::look_after_peers_and_stalls() {
  const auto now = Clock::now();
  if (now < looked_ + tick_) {
    return;
  }
  if (table_.in_flight() == 0 && !busy()) {
    return;
  }
  looked_ = now;
  plane_.check_peers();
  if (device_path_.busy()) {
    communicators_.check_gpu();
    device_path_.look_after();
  }
  const bool asks_for_units = unit_watch_.should_ask(dispatcher_.longest_wait(), now);
  if (stalls_.should_ask(table_.undispatched(), now) || asks_for_units) {
    negotiator_.ask_for_stalls();
    do {
      run_round();  // the question, then the answers
      dispatcher_.lanes().start_kept();
    } while (want_round());
  }
}

void Coordinator::report_stalls(const Answers& answers) {
  auto dead = dead_unit(answers, negotiator_.process_sets(), options_.unit_timeout_s);
  if (const auto proof = unit_watch_.proof(std::move(dead), Clock::now())) {
    throw Error(Code::kTimeout, *proof);
  }
  const std::vector<Stall> stalls =
      stalls_.inspect(table_.undispatched(), answers, negotiator_.process_sets(), Clock::now());
  const std::vector<Stall> mine = stalls_to_report(stalls, plane_.rank());
  if (!mine.empty()) {
    AIACC_LOG(kWarning) << stall_text(mine, answers);
    stall_file_.append(mine);
  }
  for (const Stall& stall : stalls) {
    if (!stall.missing.empty() && stalls_.is_fatal(stall)) {
      throw Error(Code::kTimeout, stall_text({stall}, answers));
    }
  }
}

Clock::time_point Coordinator::next_deadline() {
  auto deadline = Clock::time_point::max();
  if (table_.in_flight() > 0 || busy()) {
    deadline = Clock::now() + tick_;
  }
  if (table_.has_queued()) {
    deadline = std::min(deadline, table_.queued_since() + options_.linger);
  }
  if (vain_since_ != Clock::time_point{}) {
    deadline = std::min(deadline, vain_since_ + options_.patience);
  }
  if (const auto failure = dispatcher_.failure()) {
    deadline = std::min(deadline, failure->when + kCauseGrace);
  }
  return deadline;
}

/// Whether no lane has stood still for as long as it may after an orderly shutdown.
bool Coordinator::still_moves() noexcept {
  try {
    return std::chrono::duration<double>(dispatcher_.lanes().longest_wait()) < kDrain;
  } catch (...) {  // no memory
    return false;
  }
}

/// The progress thread's. Buffers of failed operations are not touched any more when this returns.
void Coordinator::fail(const Status& status) noexcept {
  if (failed_.load()) {
    return;
  }
  const bool orderly = status.code() == Code::kShutdown;
  plane_.abort(status);
  if (orderly) {
    const auto latest = Clock::now() + kDrainMoving;
    while (!dispatcher_.drain(Clock::now() + kDrain) && Clock::now() < latest && still_moves()) {
    }
    messenger_.drain(Clock::now() + kDrain);
    device_path_.drain(Clock::now() + kDrainGpu);
  } else {
    AIACC_LOG(kError) << status.message();
  }
  failed_.store(true);
  dispatcher_.stop(status);
  messenger_.stop(status);
  device_path_.drain(Clock::now() + kAbortGpu);
  table_.close(status);
  plane_.wake();
}

}  // namespace aiacc
