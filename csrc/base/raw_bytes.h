#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace aiacc {

/// Leaves elements without a value as they are, where std::allocator zeroes them.
template <class T>
struct UninitializedAllocator : std::allocator<T> {
  template <class U>
  struct rebind {  // NOLINT(readability-identifier-naming): the standard's name
    using other = UninitializedAllocator<U>;
  };

  template <class U>
  void construct(U* place) {
    ::new (static_cast<void*>(place)) U;
  }
  template <class U, class... Args>
  void construct(U* place, Args&&... args) {
    ::new (static_cast<void*>(place)) U(std::forward<Args>(args)...);
  }
};

/// Memory that is written next: `resize` does not touch it.
using RawBytes = std::vector<std::uint8_t, UninitializedAllocator<std::uint8_t>>;

}  // namespace aiacc
