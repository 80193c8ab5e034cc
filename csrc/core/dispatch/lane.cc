#include "csrc/core/dispatch/lane.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "csrc/base/thread.h"

namespace aiacc {

LaneReport report_of(std::size_t lane, const UnitWait& unit, double limit_s) {
  LaneReport report;
  report.lane = static_cast<std::uint32_t>(lane);
  report.process_set = unit.id.process_set;
  report.order = unit.id.order;
  report.unit = unit.id.unit;
  if (unit.seconds > 0 && unit.seconds >= limit_s) {
    report.stuck = true;
    report.ahead = unit.ahead;
    report.tensors = unit.name;
  }
  return report;
}

Lane::Lane(std::string name, Run run, Prepare prepare)
    : name_(std::move(name)),
      run_(std::move(run)),
      prepare_(std::move(prepare)),
      worker_(start_thread("aiacc " + name_, [this] { work(); })) {}

Lane::~Lane() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  worker_.join();
}

void Lane::push(Unit& unit, bool notify) {
  {
    const std::lock_guard lock(mutex_);
    std::swap(queue_.push(), unit);
    notify = notify && !running_;  // Who runs the lane looks again before it stops.
  }
  if (notify) {
    work_.notify_one();
  }
}

void Lane::help(const Operation& operation) {
  std::unique_lock lock(mutex_);
  if (running_) {
    return;
  }
  while (is_next(operation)) {
    run_one(lock);
  }
  leave();
}

/// With the lock.
bool Lane::is_next(const Operation& operation) const {
  const auto is_of = [&](const Piece& piece) { return piece.operation == &operation; };
  return has_work() && std::any_of(upcoming().pieces.begin(), upcoming().pieces.end(), is_of);
}

bool Lane::quiesce(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  work_.notify_one();
  return idle_.wait_until(lock, deadline, [this] { return !running_ && !has_work(); });
}

void Lane::work() {
  // Engines sleep for tens of microseconds between tests; the default slack would double that.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || (has_work() && !running_); });
    if (stopping_) {
      return;
    }
    while (has_work()) {
      run_one(lock);
    }
    leave();
  }
}

std::optional<UnitId> Lane::current() const {
  const std::lock_guard lock(mutex_);
  if (!active_ && !has_work()) {
    return std::nullopt;
  }
  return active_ ? id_ : id_of(upcoming());
}

std::optional<LaneReport> Lane::report(const TensorTable& table, double limit_s) const {
  const std::lock_guard lock(mutex_);
  if (!active_ && !has_work()) {
    return std::nullopt;
  }
  const Unit& unit = active_ ? unit_ : upcoming();
  const Communicator& communicator = *unit.communicator;
  const LaneWait wait =
      active_ ? communicator.engine->waits(static_cast<int>(unit.plan.lane)) : LaneWait{};
  UnitWait state{id_of(unit), "", wait.seconds, communicator.distance_to(wait)};
  if (wait.seconds >= limit_s) {
    std::vector<const Operation*> operations;  // for comparison only: they may have finished
    operations.reserve(unit.pieces.size());
    for (const Piece& piece : unit.pieces) {
      operations.push_back(piece.operation);
    }
    state.name = table.labels(operations);
  }
  return report_of(unit.plan.lane, state, limit_s);
}

/// Runs the next unit, without the lock.
void Lane::run_one(std::unique_lock<std::mutex>& lock) {
  running_ = true;
  if (prepared_) {
    std::swap(unit_, next_);
    prepared_ = false;
  } else {
    std::swap(unit_, queue_.front());
    queue_.pop();
  }
  if (prepare_ && !queue_.empty()) {
    std::swap(next_, queue_.front());
    queue_.pop();
    prepared_ = true;
  }
  active_ = true;
  id_ = id_of(unit_);
  bool failed = failed_;
  lock.unlock();
  if (!failed) {
    if (prepared_) {
      prepare_(next_);
    }
    failed = !run_(unit_, buffer_);
  }
  lock.lock();
  failed_ = failed;
  active_ = false;
  std::shared_ptr<const Communicator> communicator = std::move(unit_.communicator);
  if (communicator.use_count() == 1) {  // of a removed set: its engine ends here
    lock.unlock();
    communicator.reset();
    lock.lock();
  }
}

/// The runner's end; what is left is the worker's.
void Lane::leave() {
  running_ = false;
  if (has_work()) {
    work_.notify_one();
  } else {
    idle_.notify_all();
  }
}

}  // namespace aiacc
