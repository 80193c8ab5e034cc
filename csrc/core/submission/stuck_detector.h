#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/core/submission/tensor_table.h"

namespace aiacc {

/// Tracks the submitting threads, and detects that all of them wait for operations that are ready
/// nowhere.
///
/// A thread counts from its first submission on, also when it has ended: in doubt a rank is not
/// stuck. Nobody knows which threads have yet to submit for the first time. So a rank is stuck only
/// with the thread that made this object, the main thread most often: what it waits for, the same
/// thread of each other rank comes to, which is stuck, too. Otherwise two threads that begin in a
/// different order on two ranks would look like ranks that do different things. Threads: any.
class StuckDetector {
 public:
  StuckDetector();

  /// The calling thread is about to submit.
  void note();

  /// While it lives, the calling thread waits for the operation, which outlives it.
  class Wait {
   public:
    Wait(StuckDetector& owner, const Operation& operation);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    /// When it began.
    Clock::time_point since() const { return since_; }

   private:
    friend StuckDetector;
    bool undecided() const;

    StuckDetector& owner_;
    const Operation* operation_ = nullptr;  ///< null: the wait does not count
    const std::thread::id thread_ = std::this_thread::get_id();
    const Clock::time_point since_ = Clock::now();
  };

  /// Every thread that submits waits for an operation that has an automatic name and is neither
  /// dispatched nor done.
  bool all_stuck() const;
  /// The same for any name, given or automatic, and waits that began at `begun` or before.
  bool all_stuck_since(Clock::time_point begun) const;

 private:
  template <class Counts>
  bool all_wait(Counts counts) const;

  const std::uint64_t id_;
  const std::thread::id maker_ = std::this_thread::get_id();
  std::atomic<std::size_t> count_{0};
  mutable std::mutex mutex_;
  std::vector<const Wait*> waits_;
};

}  // namespace aiacc
