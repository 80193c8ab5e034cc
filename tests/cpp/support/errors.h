#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/base/event.h"

namespace aiacc {

/// A deadline that nothing here comes near.
inline Clock::time_point soon() { return Clock::now() + std::chrono::seconds(60); }
inline Clock::time_point never() { return Clock::time_point::max(); }

/// The error of `call`, or Status() if there was none.
template <class Call>
Status status_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

/// The error of the first of many equal calls that has one.
template <class Call>
Status first_error_of(Call call) {
  return status_of([&] {
    while (true) {
      call();
    }
  });
}

/// That the text has these parts.
inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(std::string::npos, text.find(part)) << "'" << part << "' is not in: " << text;
  }
}

/// That it is this error, with these parts in its text.
inline void expect_error(const Status& status,
                         Code code,
                         const std::vector<std::string>& parts = {}) {
  EXPECT_EQ(code, status.code()) << status.message();
  expect_parts(status.message(), parts);
}

/// Lets other threads run until `reached()`.
template <class Reached>
void yield_until(Reached reached) {
  while (!reached()) {
    std::this_thread::yield();
  }
}

/// A call in a thread of its own, which waits for somebody who never comes; the constructor returns
/// when it has begun.
class BlockedCall {
 public:
  template <class Call>
  explicit BlockedCall(Call call)
      : thread_([this, call] {
          begun_ = true;
          seen_ = status_of(call);
        }) {
    yield_until([this] { return begun_.load(); });
  }

  /// The error with which it has ended.
  Status join() {
    thread_.join();
    return seen_;
  }

 private:
  std::atomic<bool> begun_{false};
  Status seen_;
  std::thread thread_;  ///< the last: it uses the others
};

}  // namespace aiacc
