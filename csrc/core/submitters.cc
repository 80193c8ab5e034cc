#include "csrc/core/submitters.h"

#include <algorithm>

namespace aiacc {
namespace {

std::atomic<std::uint64_t> next_id{1};

/// The object that this thread has submitted to.
thread_local std::uint64_t noted = 0;

}  // namespace

Submitters::Submitters() : id_(next_id.fetch_add(1)) {}

void Submitters::note() {
  if (noted != id_) {
    noted = id_;
    count_.fetch_add(1);
  }
}

Submitters::Wait::Wait(Submitters& owner, const Operation& operation)
    : owner_(owner), operation_(nullptr) {
  // Who waits in join has nothing more to submit, but answers what the others do.
  if (operation.request.cacheable || operation.request.kind == OpKind::kJoin ||
      noted != owner.id_) {
    return;
  }
  operation_ = &operation;
  const std::lock_guard lock(owner_.mutex_);
  owner_.waited_.push_back(operation_);
}

Submitters::Wait::~Wait() {
  if (operation_ != nullptr) {
    const std::lock_guard lock(owner_.mutex_);
    owner_.waited_.erase(std::find(owner_.waited_.begin(), owner_.waited_.end(), operation_));
  }
}

bool Submitters::all_stuck() const {
  const std::lock_guard lock(mutex_);
  const auto undecided =
      std::count_if(waited_.begin(), waited_.end(), [](const Operation* operation) {
        return !operation->dispatched.load() && !operation->done.load();
      });
  return undecided > 0 && static_cast<std::size_t>(undecided) == count_.load();
}

}  // namespace aiacc
