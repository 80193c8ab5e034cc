#pragma once

#include <cstddef>

namespace aiacc {

/// Pages of memory, zeros to begin with, that MPI may be given. Any thread.
class Pages {
 public:
  Pages() = default;
  /// Throws Error(kEngine).
  explicit Pages(std::size_t bytes);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  /// For memory that something may still write to, at a time that nobody knows: gives the pages
  /// back to the system, but keeps their addresses for good. Reads find zeros.
  void give_up() noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace aiacc
