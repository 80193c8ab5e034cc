#pragma once

#include <atomic>
#include <cstddef>

namespace aiacc {

// A program that uses one of these has an operator new that counts.

/// Bytes of the largest single allocation since it was set to 0.
extern std::atomic<std::size_t> largest_allocation;
/// Calls of operator new, by any thread.
extern std::atomic<std::size_t> allocations;

}  // namespace aiacc
