#pragma once

#include <cstddef>
#include <string>

namespace aiacc {

/// Pages of memory, this process's own or shared by name with others of the machine. Any thread.
class Pages {
 public:
  Pages() = default;
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  /// Zeros that nobody else sees. Throws Error(kEngine).
  static Pages own(std::size_t bytes);
  /// New zeros in /dev/shm, which `open` finds until `remove`, or until this process has ended and
  /// somebody sweeps. All of them are there when it
  /// returns: a use later on never fails for want of memory, which would end the process (SIGBUS).
  /// Throws Error(kEngine) if there is not enough, or the name is taken.
  static Pages create(const std::string& name, std::size_t bytes);
  /// What another process has created. Throws Error(kEngine).
  static Pages open(const std::string& name, std::size_t bytes);
  /// Takes the name away; who has the pages keeps them.
  static void remove(const std::string& name) noexcept;

  /// Removes what was created with a name that begin so, by processes of this user that have ended
  /// since, killed before they could remove it.
  static void sweep(const std::string& prefix) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  /// For memory that something may still write to, at a time that nobody knows: gives the pages
  /// back to the system, but keeps their addresses for good. Reads find zeros.
  void give_up() noexcept;

 private:
  Pages(void* data, std::size_t size) : data_(static_cast<std::byte*>(data)), size_(size) {}

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace aiacc
