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

int make_epoll() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) {
    throw system_error(Code::kEngine, "[control] epoll", errno);
  }
  return epoll;
}

}  // namespace

Alarm::Alarm() : fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (fd_ < 0) {
    throw system_error(Code::kEngine, "[control] timerfd", errno);
  }
}

Alarm::~Alarm() { close(fd_); }

void Alarm::set(Clock::time_point time) noexcept {
  const std::lock_guard lock(mutex_);
  if (time >= time_) {
    return;
  }
  time_ = time;
  const auto left = std::chrono::nanoseconds(time - Clock::now()).count();
  const auto nanoseconds = std::max<long long>(left, 1);  // 0 would stop it
  itimerspec when{};
  when.it_value.tv_sec = nanoseconds / 1'000'000'000;
  when.it_value.tv_nsec = nanoseconds % 1'000'000'000;
  timerfd_settime(fd_, 0, &when, nullptr);
}

void Alarm::clear() noexcept {
  const std::lock_guard lock(mutex_);
  std::uint64_t expirations = 0;
  if (read(fd_, &expirations, sizeof expirations) > 0) {
    time_ = Clock::time_point::max();
  }
}

ControlPoller::ControlPoller() : epoll_(make_epoll()) {
  add(event_.fd());
  add(timer_.fd());
}

ControlPoller::~ControlPoller() { close(epoll_); }

void ControlPoller::add(int descriptor) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw system_error(Code::kInternal, "[control] epoll_ctl", errno);
  }
}

void ControlPoller::remove(int descriptor) noexcept {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
}

void ControlPoller::want_room(int socket, bool wanted) noexcept {
  epoll_event event{};
  event.events = EPOLLIN | (wanted ? EPOLLOUT : 0U);
  event.data.fd = socket;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, socket, &event);
}

bool ControlPoller::wait(Clock::time_point deadline) {
  int timeout_ms = -1;
  if (deadline != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    timeout_ms = static_cast<int>(std::clamp<long long>(left, 0, 3'600'000));
  }
  epoll_event events[4];
  const int ready = epoll_wait(epoll_, events, 4, timeout_ms);
  const bool woken = event_.clear();  // perhaps by a wake-up that came after the sleep
  timer_.clear();
  return woken || ready > 1 || (ready == 1 && events[0].data.fd != timer_.fd());
}

}  // namespace aiacc
