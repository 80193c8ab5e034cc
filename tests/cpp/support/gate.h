#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

namespace aiacc {

/// Whoever comes waits while it is shut; it remembers who came, in their order.
class Gate {
 public:
  explicit Gate(bool open) : open_(open) {}

  void pass(int who = 0) {
    std::unique_lock lock(mutex_);
    arrived_.push_back(who);
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  /// Until so many have come.
  void await(std::size_t arrivals) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_.size() >= arrivals; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  std::vector<int> arrived() {
    const std::lock_guard lock(mutex_);
    return arrived_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> arrived_;
  bool open_;
};

}  // namespace aiacc
