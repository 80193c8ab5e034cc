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

/// Sets a one-shot timer unless it is running already.
void arm(int timer, std::atomic<bool>& armed, long long nanoseconds) noexcept {
  if (armed.exchange(true)) {
    return;
  }
  itimerspec when{};
  when.it_value.tv_sec = nanoseconds / 1'000'000'000;
  when.it_value.tv_nsec = nanoseconds % 1'000'000'000;
  timerfd_settime(timer, 0, &when, nullptr);
}

/// Makes an expired timer unreadable again.
void expire(int timer, std::atomic<bool>& armed) noexcept {
  std::uint64_t expirations = 0;
  if (read(timer, &expirations, sizeof expirations) > 0) {
    // An exchange, to see what was done before an `arm` that found the timer running.
    armed.exchange(false);
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

ControlPoller::ControlPoller()
    : timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      grace_timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      inner_(epoll_create1(EPOLL_CLOEXEC)),
      outer_(epoll_create1(EPOLL_CLOEXEC)) {
  if (timer_ < 0 || grace_timer_ < 0 || inner_ < 0 || outer_ < 0) {
    const int error = errno;
    close_descriptors();
    throw system_error(Code::kEngine, "[control] epoll or timerfd", error);
  }
  watch(inner_, event_.fd());
  watch(inner_, timer_);
  watch(outer_, inner_);
  watch(outer_, grace_timer_);
  watch(outer_, event_.fd());
}

ControlPoller::~ControlPoller() { close_descriptors(); }

void ControlPoller::close_descriptors() noexcept {
  for (const int fd : {timer_, grace_timer_, inner_, outer_}) {
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
  expire(grace_timer_, grace_armed_);
}

void ControlPoller::wait_claimed(Clock::time_point deadline) {
  sleep_on(inner_, deadline);
  take_wakes();
}

void ControlPoller::take_wakes() noexcept {
  event_.clear();
  expire(timer_, timer_armed_);
}

void ControlPoller::wake_at(Clock::time_point deadline) noexcept {
  const auto left = std::chrono::nanoseconds(deadline - Clock::now()).count();
  arm(timer_, timer_armed_, std::max<long long>(left, 1));
}

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
  arm(grace_timer_, grace_armed_, std::chrono::nanoseconds(grace).count());
}

}  // namespace aiacc
