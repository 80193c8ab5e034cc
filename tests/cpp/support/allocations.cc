#include "tests/cpp/support/allocations.h"

#include <cstdlib>
#include <new>

namespace aiacc {

std::atomic<std::size_t> largest_allocation{0};
std::atomic<std::size_t> allocations{0};

}  // namespace aiacc

void* operator new(std::size_t bytes) {
  aiacc::allocations.fetch_add(1, std::memory_order_relaxed);
  std::size_t largest = aiacc::largest_allocation.load(std::memory_order_relaxed);
  while (bytes > largest && !aiacc::largest_allocation.compare_exchange_weak(largest, bytes)) {
  }
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
