#pragma once

#include <atomic>

#include "csrc/base/error.h"
#include "csrc/base/event.h"

namespace aiacc {

/// One shot stop signal for threads that sleep in poll(2) or run between system calls.
/// All methods: any thread.
class Cancellation {
 public:
  /// The first status wins.
  void set(const Status& status) noexcept {
    if (!claimed_.exchange(true)) {
      try {
        status_ = status;
      } catch (...) {
        // Out of memory for the text: the code alone has to do.
        status_ = Status(status.code(), std::string());
      }
      is_set_.store(true, std::memory_order_release);
      event_.set();
    }
  }

  /// Throws the status as Error once there is one.
  void check() const {
    if (is_set_.load(std::memory_order_acquire)) {
      throw Error(status_);
    }
  }

  /// Readable from `set` on.
  int fd() const { return event_.fd(); }

 private:
  std::atomic<bool> claimed_{false};
  std::atomic<bool> is_set_{false};
  Status status_;
  Event event_;
};

}  // namespace aiacc
