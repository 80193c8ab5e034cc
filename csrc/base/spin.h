#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "csrc/base/event.h"

namespace aiacc {

/// Decides whether a wait is worth spinning for before it sleeps.
///
/// Spinning saves a wake-up when what is waited for comes within the limit, and robs others of the
/// core when it does not: on a busy machine, of the very thread that is waited for. So a spin that
/// was in vain makes the next waits sleep at once, twice as many each time, up to kMaxSkip.
/// One thread at a time.
class Spin {
 public:
  explicit Spin(std::chrono::nanoseconds limit) : limit_(limit) {}

  /// Starts a wait.
  void begin() {
    skipping_ = skip_left_ > 0 || limit_.count() <= 0;
    skip_left_ -= skip_left_ > 0 ? 1 : 0;
    until_ = {};
  }

  /// Whether to look again instead of sleeping. Call it each time nothing was found.
  bool again() {
    if (skipping_) {
      return false;
    }
    const auto now = Clock::now();
    if (until_ == Clock::time_point{}) {
      until_ = now + limit_;
    }
    if (now < until_) {
      return true;
    }
    skip_ = std::min<std::uint32_t>(skip_ == 0 ? 1 : skip_ * 2, kMaxSkip);
    skip_left_ = skip_;
    skipping_ = true;
    return false;
  }

  /// Ends a wait.
  void end() {
    if (!skipping_) {
      skip_ = 0;
    }
  }

 private:
  static constexpr std::uint32_t kMaxSkip = 64;

  std::chrono::nanoseconds limit_;
  Clock::time_point until_{};
  bool skipping_ = false;
  std::uint32_t skip_ = 0;
  std::uint32_t skip_left_ = 0;
};

}  // namespace aiacc
