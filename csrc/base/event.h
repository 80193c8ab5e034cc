#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace aiacc {

/// The clock of every deadline.
using Clock = std::chrono::steady_clock;

inline Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// How many of the entries are ready: 0 at `deadline`, which may be over. A signal is neither.
/// Throws Error(kInternal).
int poll_until(pollfd* entries, std::size_t count, Clock::time_point deadline);

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
  /// Whether it was set.
  bool clear() noexcept;

 private:
  int fd_;
};

/// Sleeps on a word, which may be in memory that processes share, while it has this value, until
/// `futex_wake` or `deadline`; false at the deadline. A signal is neither.
bool futex_wait(std::atomic<std::uint32_t>& word,
                std::uint32_t expected,
                Clock::time_point deadline);

/// Ends the sleep of one thread.
void futex_wake(std::atomic<std::uint32_t>& word) noexcept;

/// Lets the other thread of a core run while this one spins.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace aiacc
