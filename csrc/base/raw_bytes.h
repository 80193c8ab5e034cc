#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace aiacc {

/// Memory that was used before, if there is some of about this size: fresh memory of the system
/// costs a page fault for each page, which is more than receiving its bytes takes.
///
/// Threads: any. Between uses the process keeps at most kMostKeptBytes.
void* acquire_memory(std::size_t bytes);
void release_memory(void* memory, std::size_t bytes) noexcept;

inline constexpr std::size_t kMostKeptBytes = std::size_t{64} << 20;

/// Reuses memory, and leaves elements without a value as they are where std::allocator zeroes them.
template <class T>
struct RawAllocator {
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard's name

  RawAllocator() = default;
  template <class U>
  RawAllocator(const RawAllocator<U>&) {}

  T* allocate(std::size_t count) { return static_cast<T*>(acquire_memory(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t count) noexcept {
    release_memory(memory, count * sizeof(T));
  }

  template <class U>
  void construct(U* place) {
    ::new (static_cast<void*>(place)) U;
  }
  template <class U, class... Args>
  void construct(U* place, Args&&... args) {
    ::new (static_cast<void*>(place)) U(std::forward<Args>(args)...);
  }

  bool operator==(const RawAllocator&) const { return true; }
  bool operator!=(const RawAllocator&) const { return false; }
};

/// Memory that is written next: `resize` does not touch it.
using RawBytes = std::vector<std::uint8_t, RawAllocator<std::uint8_t>>;

}  // namespace aiacc
