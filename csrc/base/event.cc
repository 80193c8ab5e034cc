#include "csrc/base/event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

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

void Event::clear() noexcept {
  std::uint64_t value = 0;
  [[maybe_unused]] const auto got = read(fd_, &value, sizeof value);
}

}  // namespace aiacc
