#pragma once

#include <chrono>
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

/// What the threads of a control plane sleep on: its connections, an event and two timers.
/// Functions named as those of ControlPlane do what it says there.
class ControlPoller {
 public:
  ControlPoller();
  ~ControlPoller();
  ControlPoller(const ControlPoller&) = delete;
  ControlPoller& operator=(const ControlPoller&) = delete;

  /// From now on sleeps end when this connection has something to read.
  void add(int socket);
  void remove(int socket) noexcept;
  /// Whether they also end when it takes more.
  void want_room(int socket, bool wanted) noexcept;

  void wait(Clock::time_point deadline);
  void wait_claimed(Clock::time_point deadline);
  void take_wakes() noexcept;
  void wake() noexcept { event_.set(); }
  void wake_at(Clock::time_point deadline) noexcept;
  void claim();
  void unclaim() noexcept;
  void unclaim_after(std::chrono::microseconds grace) noexcept;

 private:
  void close_descriptors() noexcept;
  void watch_inner(bool enabled) noexcept;

  Event event_;
  Alarm timer_;
  Alarm grace_timer_;
  bool claimed_ = false;
  int inner_;  ///< epoll over connections, event and timer: what a progress thread sleeps on
  int outer_;  ///< epoll over event, grace timer and, unless claimed, `inner_`: for `wait`
};

}  // namespace aiacc
