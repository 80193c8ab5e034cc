// What the loop thread does: rounds, and looking after the job between them.

#include <algorithm>
#include <string>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/core/coordinator.h"

namespace aiacc {
namespace {

/// So much takes little longer than the two thread switches that a caller saves by moving it
/// itself. Among process sets it may: a lane of another rank may be taken by a unit of another set.
constexpr std::uint64_t kOwnBytes = std::uint64_t{256} << 10;

/// For which a caller waits until the loop thread has looked around.
constexpr std::chrono::microseconds kGlance{20};

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

bool any_stuck(const std::vector<LaneReport>& reports) {
  return std::any_of(
      reports.begin(), reports.end(), [](const LaneReport& lane) { return lane.stuck; });
}

}  // namespace

/// The one exception to callers that wait: one whose operation is alone in the table runs rounds
/// until that is dispatched, then the operation's own unit. A blocking call saves the way to two
/// threads and back, which takes longer than the bytes; without this function nothing else changes.
void Coordinator::run_alone(const Operation& operation) {
  std::unique_lock lock(round_mutex_, std::try_to_lock);
  for (const auto end = Clock::now() + kGlance; !lock.owns_lock() && Clock::now() < end;) {
    if (in_round_.load()) {
      return;
    }
    lock.try_lock();  // The loop thread only looks around.
  }
  if (!lock.owns_lock() || failed_.load() || table_.in_flight() != 1 ||
      !plane_.lets_callers_run()) {
    return;
  }
  if (!operation.request.on_gpu()) {  // whose units wait for what the framework has queued there
    const bool is_short =
        negotiator_.process_sets().size() == 1 && operation.request.total_bytes() <= kOwnBytes;
    dispatcher_.keep_for(operation, is_short ? kOwnBytes : 0);
  }
  try {
    plane_.service();
    throw_lane_failure();
    while (!operation.done.load() && !operation.dispatched.load() && want_round()) {
      run_round(Runner::kCaller);
    }
  } catch (...) {
    fail(reported_by(plane_.rank(), current_exception_status()));
  }
  Lane* own = dispatcher_.take_kept();
  plane_.has_share(!is_idle());
  lock.unlock();
  if (own != nullptr) {
    own->help(operation);  // It was not woken: nobody else would.
  }
}

/// Must not write to a log or a file, and must not touch a tensor: others wait for this thread.
void Coordinator::loop() {
  auto deadline = Clock::time_point::max();
  while (true) {
    const bool called = plane_.wait(deadline);
    if (!called && Clock::now() < std::min(deadline, linger_end())) {
      // The alarm was for what a caller has seen to, which may be running its next round already.
      deadline = table_.in_flight() > 0 ? std::min(deadline, Clock::now() + tick_) : deadline;
      continue;
    }
    std::unique_lock lock(round_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
      plane_.nudge();  // The caller that runs rounds sees what has come.
      lock.lock();
    }
    if (failed_.load()) {
      return;
    }
    plane_.at_work(true);
    try {
      throw_lane_failure();
      if (stopping_.load()) {
        throw Error(end_status());
      }
      plane_.service();
      while (want_round()) {
        run_round();
        plane_.service();
      }
      look_after_peers_and_stalls();
      plane_.has_share(!is_idle());
      deadline = next_deadline();
    } catch (...) {
      fail(reported_by(plane_.rank(), current_exception_status()));
      return;
    }
    plane_.at_work(false);
  }
}

/// When what is queued is worth a round whatever comes.
Clock::time_point Coordinator::linger_end() const {
  return table_.has_queued() ? table_.queued_since() + options_.linger : Clock::time_point::max();
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
         Clock::now() >= linger_end();
}

/// Whether units are under way on this rank, also on its GPUs.
bool Coordinator::busy() { return dispatcher_.busy() || device_path_->busy(); }

/// Whether this rank has nothing to say in a round, and no other process set either.
bool Coordinator::is_idle() const {
  return !table_.has_queued() && negotiator_.waiting() == 0 &&
         negotiator_.process_sets().size() == 1;
}

/// Whether the pending round must end without a ready tensor: all of them need this rank, which has
/// submitted nothing, unless others form a process set among themselves. So a step in which ranks
/// submit the same tensors in the same order has at most one round for each of them, however far
/// the ranks are apart.
bool Coordinator::is_vain() {
  if (!is_idle() || (plane_.pending_flags() & kFlagForming) != 0) {
    return false;
  }
  if (vain_since_ == Clock::time_point{}) {
    vain_since_ = Clock::now();
    plane_.wake_at(vain_since_ + options_.patience);
  }
  return Clock::now() < vain_since_ + options_.patience;
}

void Coordinator::run_round(Runner runner) {
  const auto start = Clock::now();
  vain_since_ = {};
  flush_.store(false);
  const std::uint32_t state =
      (busy() ? kFlagBusy : 0U) | (plane_.pending_flags() & kFlagForming);  // for those behind it
  table_.drain(drained_);
  for (Operation* operation : drained_) {
    negotiator_.submit(*operation);
  }
  propose_weights();
  const std::uint32_t asked = negotiator_.asked();
  if (asked != 0) {
    negotiator_.answer_with(dispatcher_.reports(unit_watch_.limit_s(start)),
                            (asked & kFlagStallQuery) != 0
                                ? table_.undispatched(negotiator_.process_sets(), start)
                                : std::vector<PendingName>());
  }
  negotiator_.contribute(message_, state);
  in_round_.store(true);
  plane_.all_reduce(message_, combine_rounds, runner);
  in_round_.store(false);
  const RoundOutcome& outcome = negotiator_.apply(message_);
  check_parameters(negotiator_.parameters(), static_cast<std::uint32_t>(engine_.lanes()));
  publish(negotiator_.parameters());
  if (timeline_.marks_rounds()) {
    timeline_.record("round", "CYCLE_START", "rounds", start, Clock::now(), message_.size());
  }
  tensors_.fetch_add(outcome.ready.size(), std::memory_order_relaxed);
  if ((outcome.flags & kFlagBusy) == 0) {
    dispatcher_.clear_loads();
  }
  dispatcher_.dispatch(outcome.ready, negotiator_.parameters());
  if ((outcome.flags & kFlagStallQuery) != 0) {
    stalls_.asked(Clock::now());
  }
  if (asked != 0) {
    take_answers(asked, outcome.answers);
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
  if (now < looked_ + tick_ || (table_.in_flight() == 0 && !busy())) {
    return;
  }
  looked_ = now;
  plane_.watch_peers();
  messenger_.look();
  if (device_path_->busy()) {
    communicators_.check_gpu();
    device_path_->look_after();
  }
  const bool units =
      any_stuck(dispatcher_.reports(unit_watch_.ask_after_s())) && unit_watch_.should_ask(now);
  const bool stalls = stalls_.should_ask(table_.undispatched(negotiator_.process_sets(), now), now);
  if (units || stalls) {
    negotiator_.ask((units ? kFlagUnitQuery : 0U) | (stalls ? kFlagStallQuery : 0U));
    do {
      run_round();  // the question, then the answers
    } while (want_round());
  }
}

/// Those to the questions of the round before.
void Coordinator::take_answers(std::uint32_t asked, const Answers& answers) {
  auto dead = dead_unit(answers, negotiator_.process_sets(), options_.unit_timeout_s);
  if (const auto proof = unit_watch_.proof(std::move(dead), Clock::now())) {
    throw Error(Code::kTimeout, *proof);
  }
  if ((asked & kFlagStallQuery) == 0) {
    return;
  }
  const std::vector<Stall> stalls = stalls_.inspect(answers);
  if (stalls.empty()) {
    return;
  }
  if (stall_reporter(stalls) == plane_.rank()) {
    AIACC_LOG(kWarning) << stall_text(stalls, answers);
    stall_file_.append(stalls);
  }
  if (stalls_.is_fatal(stalls.front())) {
    throw Error(Code::kTimeout, stall_text({stalls.front()}, answers));
  }
}

Clock::time_point Coordinator::next_deadline() {
  auto deadline = Clock::time_point::max();
  if (table_.in_flight() > 0 || busy()) {
    deadline = Clock::now() + tick_;
  }
  deadline = std::min(deadline, linger_end());
  if (vain_since_ != Clock::time_point{}) {
    deadline = std::min(deadline, vain_since_ + options_.patience);
  }
  if (const auto failure = dispatcher_.failure()) {
    deadline = std::min(deadline, failure->when + kCauseGrace);
  }
  return deadline;
}

/// The runner's. Buffers of failed operations are not touched any more when this returns.
void Coordinator::fail(const Status& status) noexcept {
  if (failed_.load()) {
    return;
  }
  const bool orderly = status.code() == Code::kShutdown;
  plane_.abort(status);
  if (orderly) {
    constexpr double kDrainS = std::chrono::duration<double>(kDrain).count();
    const auto latest = Clock::now() + kDrainMoving;
    while (!dispatcher_.drain(Clock::now() + kDrain) && Clock::now() < latest &&
           !any_stuck(dispatcher_.host_reports(kDrainS))) {
    }
    messenger_.drain(Clock::now() + kDrain);
    device_path_->drain(Clock::now() + kDrainGpu);
  } else {
    AIACC_LOG(kError) << status.message();
  }
  failed_.store(true);
  dispatcher_.stop(status);
  messenger_.stop(status);
  device_path_->drain(Clock::now() + kAbortGpu);
  table_.close(status);
  plane_.wake();
}

}  // namespace aiacc
