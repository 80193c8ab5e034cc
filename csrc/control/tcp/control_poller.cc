#include "csrc/control/tcp/control_poller.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw system_error(Code::kInternal, "[control] epoll_ctl", errno);
  }
}

void sleep_on(int epoll, Clock::time_point deadline) {
  int timeout_ms = -1;
  if (deadline != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    timeout_ms = static_cast<int>(std::clamp<long long>(left, 0, 3'600'000));
  }
  epoll_event events[4];
  epoll_wait(epoll, events, 4, timeout_ms);
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

ControlPoller::ControlPoller()
    : inner_(epoll_create1(EPOLL_CLOEXEC)), outer_(epoll_create1(EPOLL_CLOEXEC)) {
  if (inner_ < 0 || outer_ < 0) {
    const int error = errno;
    close_descriptors();
    throw system_error(Code::kEngine, "[control] epoll", error);
  }
  watch(inner_, event_.fd());
  watch(inner_, timer_.fd());
  watch(outer_, inner_);
  watch(outer_, grace_timer_.fd());
  watch(outer_, event_.fd());
}

ControlPoller::~ControlPoller() { close_descriptors(); }

void ControlPoller::close_descriptors() noexcept {
  for (const int fd : {inner_, outer_}) {
    if (fd >= 0) {
      close(fd);
    }
  }
}

void ControlPoller::add(int socket) { watch(inner_, socket); }

void ControlPoller::remove(int socket) noexcept {
  epoll_ctl(inner_, EPOLL_CTL_DEL, socket, nullptr);
}

void ControlPoller::want_room(int socket, bool wanted) noexcept {
  epoll_event event{};
  event.events = EPOLLIN | (wanted ? EPOLLOUT : 0U);
  event.data.fd = socket;
  epoll_ctl(inner_, EPOLL_CTL_MOD, socket, &event);
}

void ControlPoller::wait(Clock::time_point deadline) {
  sleep_on(outer_, deadline);
  grace_timer_.clear();
}

void ControlPoller::wait_claimed(Clock::time_point deadline) {
  sleep_on(inner_, deadline);
  take_wakes();
}

void ControlPoller::take_wakes() noexcept {
  event_.clear();
  timer_.clear();
}

void ControlPoller::wake_at(Clock::time_point deadline) noexcept { timer_.set(deadline); }

void ControlPoller::watch_inner(bool enabled) noexcept {
  epoll_event event{};
  event.events = enabled ? EPOLLIN : 0U;
  event.data.fd = inner_;
  epoll_ctl(outer_, EPOLL_CTL_MOD, inner_, &event);
}

void ControlPoller::claim() {
  if (!claimed_) {
    claimed_ = true;
    watch_inner(false);
  }
}

void ControlPoller::unclaim() noexcept {
  if (claimed_) {
    claimed_ = false;
    watch_inner(true);
  }
}

void ControlPoller::unclaim_after(std::chrono::microseconds grace) noexcept {
  grace_timer_.set(Clock::now() + grace);
}

}  // namespace aiacc
