#include "tests/cpp/support/ranks.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace aiacc {

RankThreads::Guard RankThreads::on_failure(Abort abort) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) {
    abort(failure_);
  }
  return {*this, hooks_.insert(hooks_.end(), std::move(abort))};
}

void RankThreads::run(const std::function<void(int, RankThreads&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size_; ++rank) {
    threads.emplace_back([this, rank, &body] {
      try {
        body(rank, *this);
      } catch (...) {
        fail(current_exception_status(), std::current_exception());
      }
      const std::lock_guard lock(mutex_);
      ended_[static_cast<std::size_t>(rank)] = true;
      changed_.notify_all();
    });
  }
  watch();
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first_) {
    std::rethrow_exception(first_);
  }
}

bool RankThreads::all_ended() const {
  for (const bool ended : ended_) {
    if (!ended) {
      return false;
    }
  }
  return true;
}

std::string RankThreads::running() const {
  std::string names;
  for (int rank = 0; rank < size_; ++rank) {
    if (!ended_[static_cast<std::size_t>(rank)]) {
      names += (names.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  return names;
}

void RankThreads::watch() {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, kDeadline, [this] { return all_ended(); })) {
    return;
  }
  const Status late(Code::kTimeout, "[test] ranks still running at the deadline: " + running());
  lock.unlock();
  fail(late, std::make_exception_ptr(Error(late)));
  lock.lock();
  if (!changed_.wait_for(lock, std::chrono::seconds(10), [this] { return all_ended(); })) {
    std::fprintf(stderr, "[test] ranks hang even after an abort: %s\n", running().c_str());
    std::abort();
  }
}

void RankThreads::fail(const Status& status, std::exception_ptr exception) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) {
    return;
  }
  failure_ = status;
  first_ = std::move(exception);
  for (const Abort& abort : hooks_) {
    abort(status);
  }
}

}  // namespace aiacc
