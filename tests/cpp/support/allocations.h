#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

// Replaces operator new of the test program: include it in one file of a program only.

namespace aiacc {

/// Bytes of the largest single allocation since it was set to 0.
inline std::atomic<std::size_t> largest_allocation{0};
/// Calls of operator new, by any thread.
inline std::atomic<std::size_t> allocations{0};

}  // namespace aiacc

// Not inlined: GCC 12 would warn about free after new.
// NOLINTBEGIN(misc-definitions-in-headers)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  aiacc::allocations.fetch_add(1, std::memory_order_relaxed);
  std::size_t largest = aiacc::largest_allocation.load(std::memory_order_relaxed);
  while (bytes > largest && !aiacc::largest_allocation.compare_exchange_weak(largest, bytes)) {
  }
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
// NOLINTEND(misc-definitions-in-headers)
