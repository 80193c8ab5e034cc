#include "csrc/core/submission/stuck_detector.h"

#include <algorithm>

namespace aiacc {
namespace {

std::atomic<std::uint64_t> next_id{1};

/// The object that this thread has submitted to.
thread_local std::uint64_t noted = 0;

}  // namespace

StuckDetector::StuckDetector() : id_(next_id.fetch_add(1)) {}

void StuckDetector::note() {
  if (noted != id_) {
    noted = id_;
    count_.fetch_add(1);
  }
}

StuckDetector::Wait::Wait(StuckDetector& owner, const Operation& operation) : owner_(owner) {
  // Who waits in join has nothing more to submit, but answers what the others do.
  if (operation.request.kind == OpKind::kJoin || noted != owner.id_) {
    return;
  }
  operation_ = &operation;
  const std::lock_guard lock(owner_.mutex_);
  owner_.waits_.push_back(this);
}

StuckDetector::Wait::~Wait() {
  if (operation_ != nullptr) {
    const std::lock_guard lock(owner_.mutex_);
    owner_.waits_.erase(std::find(owner_.waits_.begin(), owner_.waits_.end(), this));
  }
}

bool StuckDetector::Wait::undecided() const {
  return !operation_->dispatched.load() && !operation_->done.load();
}

template <class Counts>
bool StuckDetector::all_wait(Counts counts) const {
  const std::lock_guard lock(mutex_);
  std::size_t waiting = 0;
  bool with_maker = false;
  for (const Wait* wait : waits_) {
    if (counts(*wait) && wait->undecided()) {
      ++waiting;
      with_maker = with_maker || wait->thread_ == maker_;
    }
  }
  return with_maker && waiting == count_.load();
}

bool StuckDetector::all_stuck() const {
  return all_wait([](const Wait& wait) { return !wait.operation_->request.cacheable; });
}

bool StuckDetector::all_stuck_since(Clock::time_point begun) const {
  return all_wait([=](const Wait& wait) { return wait.since_ <= begun; });
}

}  // namespace aiacc
