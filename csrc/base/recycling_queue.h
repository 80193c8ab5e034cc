#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace aiacc {

/// First in, first out. Elements are not destroyed but used again, with the memory they own: swap
/// them in and out, and a queue that has been as long before allocates nothing.
template <typename T>
class RecyclingQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& front() { return slots_[first_]; }
  const T& front() const { return slots_[first_]; }

  /// A new last element. Its value is left from an earlier use.
  T& push() {
    if (size_ == slots_.size()) {
      grow();
    }
    return slots_[(first_ + size_++) % slots_.size()];
  }
  void pop() {
    first_ = (first_ + 1) % slots_.size();
    --size_;
  }
  void clear() { size_ = 0; }

 private:
  void grow() {
    const std::size_t slots = std::max<std::size_t>(4, 2 * slots_.size());
    std::vector<T> larger(slots);
    for (std::size_t i = 0; i < size_; ++i) {
      std::swap(larger[i], slots_[(first_ + i) % slots_.size()]);
    }
    slots_.swap(larger);
    first_ = 0;
  }

  std::vector<T> slots_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace aiacc
