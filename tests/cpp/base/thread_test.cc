#include "csrc/base/thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

TEST(StartThread, RunsTheBodyInAThreadOfThatName) {
  char name[16] = "";
  std::thread thread = start_thread("aiacc a name that is too long", [&name] {
    pthread_getname_np(pthread_self(), name, sizeof name);
  });
  thread.join();
  EXPECT_STREQ(name, "aiacc a name th");
}

/// Exit code of a process with so many bytes of address space: 0 if `start` fails there with an
/// error that has these parts.
int exit_code_of(std::size_t bytes, void (*start)(), const std::vector<std::string>& parts = {}) {
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
  const Status status = status_of(start);
  const bool all = std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return status.message().find(part) != std::string::npos;
  });
  return all && status.code() == Code::kEngine ? 0 : 1;
}

TEST(StartThread, FailsWithNameAndRemedy) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer needs address space of its own";
  }
  const auto start = [] {
    auto* const started = new std::vector<std::thread>;  // leaked: they never end
    started->reserve(64);
    while (started->size() < 64) {  // stacks that the process has kept are used up first
      started->push_back(start_thread("aiacc lane 3", [] { pause(); }));
    }
  };
  const std::vector<std::string> parts = {"cannot start a thread (aiacc lane 3)",
                                          "process ",
                                          "errno 11, expected",
                                          "ulimit -u",
                                          "--pids-limit"};
  EXPECT_EXIT(_exit(exit_code_of(0, start, parts)), testing::ExitedWithCode(0), "");
}

TEST(ThreadReserve, LeavesNoThreadWhenThereIsNoRoomForAll) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer needs address space of its own";
  }
  const auto start = [] {
    try {
      const ThreadReserve reserve(10'000);
    } catch (const Error&) {
      start_thread("after", [] {}).join();  // there is room again
      throw;
    }
  };
  EXPECT_EXIT(_exit(exit_code_of(std::size_t{1} << 30, start)), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace aiacc
