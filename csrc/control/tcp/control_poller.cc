#include "csrc/control/tcp/control_poller.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

epoll_event event_of(int descriptor, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  return event;
}

}  // namespace

ControlPoller::ControlPoller()
    : timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!timer_.valid() || !epoll_.valid()) {
    throw system_error(Code::kEngine, "[control] timerfd or epoll", errno);
  }
  add(event_.fd());
  add(timer_.fd());
}

void ControlPoller::add(int descriptor) {
  epoll_event event = event_of(descriptor, EPOLLIN);
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw system_error(Code::kInternal, "[control] epoll_ctl", errno);
  }
}

void ControlPoller::remove(int descriptor) noexcept {
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, descriptor, nullptr);
}

void ControlPoller::want_room(int socket, bool wanted) noexcept {
  epoll_event event = event_of(socket, EPOLLIN | (wanted ? EPOLLOUT : 0U));
  epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, socket, &event);
}

bool ControlPoller::wait(Clock::time_point deadline) {
  int timeout_ms = -1;
  if (deadline != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    timeout_ms = static_cast<int>(std::clamp<long long>(left, 0, 3'600'000));
  }
  epoll_event events[4];
  const int ready = epoll_wait(epoll_.fd(), events, 4, timeout_ms);
  const bool woken = event_.clear();  // perhaps by a wake-up that came after the sleep
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t expirations = 0;
    if (read(timer_.fd(), &expirations, sizeof expirations) > 0) {
      alarm_ = Clock::time_point::max();
    }
  }
  return woken || ready > 1 || (ready == 1 && events[0].data.fd != timer_.fd());
}

void ControlPoller::wake_at(Clock::time_point deadline) noexcept {
  const std::lock_guard lock(mutex_);
  if (deadline >= alarm_) {
    return;
  }
  alarm_ = deadline;
  const auto left = std::chrono::nanoseconds(deadline - Clock::now()).count();
  const auto nanoseconds = std::max<long long>(left, 1);  // 0 would stop it
  itimerspec when{};
  when.it_value.tv_sec = nanoseconds / 1'000'000'000;
  when.it_value.tv_nsec = nanoseconds % 1'000'000'000;
  timerfd_settime(timer_.fd(), 0, &when, nullptr);
}

}  // namespace aiacc
