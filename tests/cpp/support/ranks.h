#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "csrc/base/error.h"

namespace aiacc {

/// Ranks as threads of one process, for tests.
///
/// The first rank that throws decides: every hook registered with `on_failure` is called with its
/// status, so that ranks which wait for it return, and `run` rethrows its exception after all
/// threads ended. Ranks that do not end within the deadline are aborted with Error(kTimeout) that
/// names them; if that does not end them either, the process is ended, because a thread cannot be.
class RankThreads {
 public:
  using Abort = std::function<void(const Status&)>;

  explicit RankThreads(int size) : size_(size), ended_(static_cast<std::size_t>(size), false) {}

  /// While it lives, another rank's failure calls the hook; destroy it before what the hook uses.
  class Guard {
   public:
    Guard(RankThreads& rank_threads, std::list<Abort>::iterator hook)
        : rank_threads_(&rank_threads), hook_(hook) {}
    Guard(Guard&& other) noexcept
        : rank_threads_(std::exchange(other.rank_threads_, nullptr)), hook_(other.hook_) {}
    Guard& operator=(Guard&&) = delete;
    ~Guard() {
      if (rank_threads_ != nullptr) {
        const std::lock_guard lock(rank_threads_->mutex_);
        rank_threads_->hooks_.erase(hook_);
      }
    }

   private:
    RankThreads* rank_threads_;
    std::list<Abort>::iterator hook_;
  };

  /// Called at once if a rank failed already.
  [[nodiscard]] Guard on_failure(Abort abort);

  /// Calls `body(rank, *this)` on one thread per rank.
  void run(const std::function<void(int, RankThreads&)>& body);

 private:
  bool all_ended() const;
  std::string running() const;
  void watch();
  void fail(const Status& status, std::exception_ptr exception);

  static constexpr std::chrono::seconds kDeadline{200};

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> ended_;
  std::list<Abort> hooks_;
  Status failure_;
  std::exception_ptr first_;
};

/// `body(rank)` or `body(rank, rank_threads)` on `size` threads; see RankThreads.
template <class Body>
void run_as_ranks(int size, Body body) {
  RankThreads(size).run([&](int rank, RankThreads& rank_threads) {
    if constexpr (std::is_invocable_v<Body&, int, RankThreads&>) {
      body(rank, rank_threads);
    } else {
      body(rank);
    }
  });
}

/// Counts the calling rank, and returns when that makes so many.
inline void await_all(std::atomic<int>& arrived, int number) {
  for (++arrived; arrived.load() < number;) {
    std::this_thread::yield();
  }
}

}  // namespace aiacc
