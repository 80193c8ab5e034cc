#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <gtest/gtest.h>

namespace aiacc {

/// Leaves this process so many descriptors more than it uses, until it is destroyed.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int left) {
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
