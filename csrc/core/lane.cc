#include "csrc/core/lane.h"

#include <sys/prctl.h>

#include <utility>

namespace aiacc {

Lane::Lane(std::string name, Run run, Prepare prepare)
    : name_(std::move(name)),
      run_(std::move(run)),
      prepare_(std::move(prepare)),
      worker_([this] { work(); }) {}

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
    notified_ = notified_ || notify;
  }
  if (notify) {
    work_.notify_one();
  }
}

void Lane::start() {
  {
    const std::lock_guard lock(mutex_);
    notified_ = true;
  }
  work_.notify_one();
}

void Lane::help() {
  std::unique_lock lock(mutex_);
  if (!running_) {
    run_queued(lock);
  }
}

bool Lane::quiesce(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  notified_ = true;
  work_.notify_one();
  return idle_.wait_until(lock, deadline, [this] { return !running_ && queue_.empty(); });
}

void Lane::work() {
  const std::string thread_name = "aiacc " + name_;
  prctl(PR_SET_NAME, thread_name.substr(0, 15).c_str());
  // Engines sleep for tens of microseconds between tests; the default slack would double that.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || (notified_ && !running_); });
    if (stopping_) {
      return;
    }
    notified_ = false;
    run_queued(lock);
  }
}

void Lane::run_queued(std::unique_lock<std::mutex>& lock) {
  running_ = true;
  bool prepared = false;  // next_ holds a unit
  while (prepared || !queue_.empty()) {
    if (prepared) {
      std::swap(unit_, next_);
      prepared = false;
    } else {
      std::swap(unit_, queue_.front());
      queue_.pop();
    }
    if (prepare_ && !queue_.empty()) {
      std::swap(next_, queue_.front());
      queue_.pop();
      prepared = true;
    }
    lock.unlock();
    if (prepared) {
      prepare_(next_);
    }
    run_(unit_, buffer_);
    unit_.team.reset();
    lock.lock();
  }
  running_ = false;
  idle_.notify_all();
}

}  // namespace aiacc
