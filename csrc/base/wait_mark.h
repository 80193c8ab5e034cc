#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "csrc/base/event.h"

namespace aiacc {

/// A lane that waits for other ranks.
struct LaneWait {
  double seconds = 0;  ///< since anything moved; 0: it does not wait, or not for long
  int for_rank = -1;   ///< in the job; -1: several, or it is not known
};

/// The longest wait that `wait_of` gives for one of `parts`, which are pointers.
template <class Parts, class WaitOf>
LaneWait longest_of(const Parts& parts, WaitOf wait_of) {
  LaneWait longest;
  for (const auto& part : parts) {
    const LaneWait wait = wait_of(*part);
    if (wait.seconds > longest.seconds) {
      longest = wait;
    }
  }
  return longest;
}

/// What the thread that runs a lane leaves for others to see while it sleeps.
///
/// Only a sleep that has lasted for a while is marked, so that lanes on which bytes move pay
/// nothing. `sleeps` and `moves` are the lane's thread's, `get` is for any.
class WaitMark {
 public:
  /// The thread has slept from `since` on, at least, and still does.
  void sleeps(Clock::time_point since, int for_rank) {
    if (since_.load(std::memory_order_relaxed) == 0) {
      for_rank_.store(for_rank, std::memory_order_relaxed);
      since_.store(since.time_since_epoch().count(), std::memory_order_release);
    }
  }
  /// What it waited for has come, or a part of it.
  void moves() {
    if (since_.load(std::memory_order_relaxed) != 0) {
      since_.store(0, std::memory_order_relaxed);
    }
  }

  LaneWait get() const {
    const std::int64_t since = since_.load(std::memory_order_acquire);
    if (since == 0) {
      return {};
    }
    const Clock::duration slept = Clock::now() - Clock::time_point(Clock::duration(since));
    return {std::chrono::duration<double>(slept).count(),
            for_rank_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::int64_t> since_{0};
  std::atomic<int> for_rank_{-1};
};

}  // namespace aiacc
