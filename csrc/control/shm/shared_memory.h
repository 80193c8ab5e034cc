#pragma once

#include <cstddef>
#include <utility>

#include "csrc/base/socket.h"

namespace aiacc {

/// Memory without a name, which another process maps once it was given the descriptor: nothing is
/// left of it when the last process that maps it has ended, however that was. Children of fork do
/// not have it. Any thread.
///
/// The system has none of it until `allocate`; a use before that may fail for want of memory, which
/// ends the process (SIGBUS).
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  /// New, and what `map` of another process takes. Nobody can change its size, and no other user
  /// can open it. Throws Error(kEngine).
  static std::pair<SharedMemory, Socket> create(std::size_t bytes);

  /// What another process of this user has created. Throws Error(kEngine) if it is something else.
  static SharedMemory map(const Socket& descriptor, std::size_t bytes);

  /// Zeros for a part of it, on the NUMA node of the calling thread. Throws Error(kEngine) if there
  /// is not enough.
  void allocate(const Socket& descriptor, std::size_t offset, std::size_t bytes);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  SharedMemory(const Socket& descriptor, std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace aiacc
