#pragma once

#include <mutex>

#include "csrc/base/event.h"
#include "csrc/base/socket.h"

namespace aiacc {

/// A timer that is set to the earliest of the times it was given since it last went off. Any
/// thread.
class Alarm {
 public:
  Alarm();
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// Readable from then on, until `clear`.
  int fd() const { return fd_; }
  void set(Clock::time_point time) noexcept;
  /// After this, one that has gone off is not set.
  void clear() noexcept;

 private:
  int fd_;
  std::mutex mutex_;
  Clock::time_point time_ = Clock::time_point::max();  ///< max: not set
};

/// What the loop thread of a control plane sleeps on: its connections, an event and a timer.
/// Functions named as those of ControlPlane do what it says there.
class ControlPoller {
 public:
  ControlPoller();
  ~ControlPoller();
  ControlPoller(const ControlPoller&) = delete;
  ControlPoller& operator=(const ControlPoller&) = delete;

  /// From now on sleeps end when this descriptor has something to read.
  void add(int descriptor);
  void remove(int descriptor) noexcept;
  /// Whether they also end when it takes more.
  void want_room(int socket, bool wanted) noexcept;

  bool wait(Clock::time_point deadline);
  void wake() noexcept { event_.set(); }
  void wake_at(Clock::time_point deadline) noexcept { timer_.set(deadline); }

 private:
  Event event_;
  Alarm timer_;
  const int epoll_;
};

}  // namespace aiacc
