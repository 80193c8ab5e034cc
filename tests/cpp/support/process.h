#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace aiacc {

/// Threads of this process that the kernel lists.
inline std::size_t process_threads() {
  std::size_t number = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++number;
  }
  return number;
}

/// Those of them that are called `name`, 15 characters at most; a thread takes its name as it
/// begins.
inline std::size_t process_threads(const std::string& name) {
  std::size_t number = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string found;
    std::getline(std::ifstream(entry.path() / "comm"), found);
    number += found == name ? 1 : 0;
  }
  return number;
}

/// The same, after all of them were joined, thus 0: `join` returns before the kernel takes a thread
/// off its list, which has no event, so this reads until they are gone, for 10 s at most.
inline std::size_t process_threads_after_join(const std::string& name) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::size_t number = process_threads(name);
  while (number > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    number = process_threads(name);
  }
  return number;
}

/// Memory of this process that is in use, in bytes, shared or not.
inline std::size_t resident_memory() {
  std::size_t total = 0;
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> total >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// Descriptors of this process, with the one that counts them.
inline std::size_t process_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Leaves this process so many descriptors more than it uses, until it is destroyed.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int left) {
    // UBSan opens a pipe to look at the first object of a class, and remembers the class.
    static_cast<void>(Error(Code::kEngine, "").status());
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    // The limit is on the number of a descriptor, so holes below it count as left.
    rlimit limit = before_;
    int free = 0;
    for (limit.rlim_cur = 0; free < left || is_open(limit.rlim_cur); ++limit.rlim_cur) {
      free += is_open(limit.rlim_cur) ? 0 : 1;
    }
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  static bool is_open(rlim_t fd) { return fcntl(static_cast<int>(fd), F_GETFD) >= 0; }

  rlimit before_{};
};

}  // namespace aiacc
