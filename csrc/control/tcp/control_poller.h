#pragma once

#include <mutex>

#include "csrc/base/event.h"
#include "csrc/base/socket.h"

namespace aiacc {

/// What the loop thread of a control plane sleeps on: its connections, an event and a timer.
/// Functions named as those of ControlPlane do what it says there.
class ControlPoller {
 public:
  ControlPoller();

  /// From now on sleeps end when this descriptor has something to read. Any thread, as `remove` and
  /// `want_room`.
  void add(int descriptor);
  void remove(int descriptor) noexcept;
  /// Whether they also end when it takes more.
  void want_room(int socket, bool wanted) noexcept;

  bool wait(Clock::time_point deadline);
  void wake() noexcept { event_.set(); }
  void wake_at(Clock::time_point deadline) noexcept;

 private:
  Event event_;
  Socket timer_;
  Socket epoll_;
  std::mutex mutex_;
  Clock::time_point alarm_ = Clock::time_point::max();  ///< what the timer is set to; max: nothing
};

}  // namespace aiacc
