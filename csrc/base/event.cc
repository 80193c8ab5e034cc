#include "csrc/base/event.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

timespec timespec_of(Clock::duration duration) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(duration);
  return {seconds.count(), std::chrono::nanoseconds(duration - seconds).count()};
}

}  // namespace

int poll_until(pollfd* entries, std::size_t count, Clock::time_point deadline) {
  while (true) {
    const timespec left = timespec_of(std::max(deadline - Clock::now(), Clock::duration::zero()));
    const int ready = ppoll(entries, count, &left, nullptr);
    if (ready >= 0) {
      return ready;
    }
    if (errno != EINTR) {
      throw system_error(Code::kInternal, "[core] ppoll", errno);
    }
  }
}

Event::Event() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) {
    throw system_error(Code::kEngine, "[core] eventfd", errno);
  }
}

Event::~Event() { close(fd_); }

void Event::set() noexcept {
  const std::uint64_t one = 1;
  // EAGAIN means that the counter is full, hence already readable.
  [[maybe_unused]] const auto written = write(fd_, &one, sizeof one);
}

bool Event::clear() noexcept {
  std::uint64_t value = 0;
  return read(fd_, &value, sizeof value) > 0;
}

bool futex_wait(std::atomic<std::uint32_t>& word,
                std::uint32_t expected,
                Clock::time_point deadline) {
  const timespec monotonic = timespec_of(deadline.time_since_epoch());
  while (syscall(SYS_futex,
                 &word,
                 FUTEX_WAIT_BITSET,
                 expected,
                 &monotonic,
                 nullptr,
                 FUTEX_BITSET_MATCH_ANY) != 0) {
    if (errno != EINTR) {
      return errno != ETIMEDOUT;
    }
  }
  return true;
}

void futex_wake(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace aiacc
