#include "csrc/base/event.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "csrc/base/error.h"

namespace aiacc {

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
                std::chrono::steady_clock::time_point deadline) {
  const auto until = deadline.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(until);
  const timespec monotonic{seconds.count(), std::chrono::nanoseconds(until - seconds).count()};
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
