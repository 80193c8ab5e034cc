#pragma once

#include <cstdint>

namespace aiacc {

/// An eventfd: the way to wake a thread that sleeps in poll(2). Any thread may set it.
class Event {
 public:
  Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  int fd() const { return fd_; }
  /// Makes `fd()` readable until `clear`.
  void set() noexcept;
  void clear() noexcept;

 private:
  int fd_;
};

}  // namespace aiacc
