#include "tests/cpp/support/in_process_plane.h"

#include <algorithm>
#include <utility>

namespace aiacc {

InProcessPlane::InProcessPlane(std::shared_ptr<InProcessHub> hub, int rank)
    : hub_(std::move(hub)), rank_(rank) {}

void InProcessPlane::all_reduce(Bytes& message, const Combine& combine, Runner) {
  std::unique_lock lock(hub_->mutex_);
  throw_if_over();
  if (hub_->size_ == 1) {
    ++joined_;
    return;
  }
  const std::uint64_t round = hub_->round_;
  hub_->shares_[static_cast<std::size_t>(rank_)] = std::move(message);
  if (++hub_->arrived_ == hub_->size_) {
    hub_->result_ = std::move(*hub_->shares_[0]);
    for (int r = 1; r < hub_->size_; ++r) {
      const auto index = static_cast<std::size_t>(r);
      combine(hub_->result_, *hub_->shares_[index], hub_->blocks_[index]);
    }
    hub_->left_ = hub_->size_;
    ++hub_->round_;
  }
  hub_->changed_.notify_all();
  hub_->changed_.wait(lock, [&] {
    return hub_->round_ != round || hub_->aborted_.has_value() || interrupted_.has_value();
  });
  if (hub_->round_ == round) {
    throw_if_over();
  }
  message = hub_->result_;
  ++joined_;
  // The last one to read the result opens the door for the next round.
  if (--hub_->left_ == 0) {
    std::fill(hub_->shares_.begin(), hub_->shares_.end(), std::nullopt);
    hub_->arrived_ = 0;
    hub_->changed_.notify_all();
  } else {
    hub_->changed_.wait(lock, [&] { return hub_->left_ == 0 || hub_->aborted_.has_value(); });
  }
}

void InProcessPlane::service() {
  const std::lock_guard lock(hub_->mutex_);
  throw_if_over();
}

bool InProcessPlane::round_pending() const {
  const std::lock_guard lock(hub_->mutex_);
  return is_pending();
}

std::uint32_t InProcessPlane::pending_flags() const {
  const std::lock_guard lock(hub_->mutex_);
  std::uint32_t flags = 0;
  for (const std::optional<Bytes>& share : hub_->shares_) {
    flags |= is_pending() && share ? flags_of(*share) : 0;
  }
  return flags;
}

bool InProcessPlane::is_pending() const { return hub_->arrived_ > 0 && hub_->round_ == joined_; }

bool InProcessPlane::is_noticed() const {
  return noticed_ == joined_ + 1 && noticed_shares_ == hub_->arrived_;
}

bool InProcessPlane::wait(Clock::time_point deadline) {
  std::unique_lock lock(hub_->mutex_);
  bool called = false;
  while (!called) {
    called = woken_ || hub_->aborted_ || interrupted_ || (is_pending() && !is_noticed());
    const auto until = std::min(deadline, timer_);
    if (called || until <= Clock::now()) {
      break;
    }
    if (until == Clock::time_point::max()) {
      hub_->changed_.wait(lock);
    } else {
      hub_->changed_.wait_until(lock, until);
    }
  }
  woken_ = false;
  if (timer_ <= Clock::now()) {
    timer_ = Clock::time_point::max();
  }
  noticed_ = is_pending() ? joined_ + 1 : 0;
  noticed_shares_ = hub_->arrived_;
  return called;
}

void InProcessPlane::wake() noexcept {
  const std::lock_guard lock(hub_->mutex_);
  woken_ = true;
  hub_->changed_.notify_all();
}

void InProcessPlane::wake_at(Clock::time_point deadline) noexcept {
  const std::lock_guard lock(hub_->mutex_);
  timer_ = std::min(timer_, deadline);
  hub_->changed_.notify_all();
}

void InProcessPlane::interrupt(const Status& status) noexcept {
  const std::lock_guard lock(hub_->mutex_);
  if (!interrupted_) {
    interrupted_ = status;
  }
  hub_->changed_.notify_all();
}

void InProcessPlane::abort(const Status& status) noexcept {
  const std::lock_guard lock(hub_->mutex_);
  if (!hub_->aborted_) {
    hub_->aborted_ = status;
  }
  hub_->changed_.notify_all();
}

std::uint64_t InProcessPlane::rounds() const {
  const std::lock_guard lock(hub_->mutex_);
  return joined_;
}

void InProcessPlane::throw_if_over() const {
  if (interrupted_) {
    throw Error(*interrupted_);
  }
  if (hub_->aborted_) {
    throw Error(*hub_->aborted_);
  }
}

}  // namespace aiacc
