#include "csrc/base/thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"

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

/// In a process that has no room for another stack. Those that it has kept are used up first.
int fail_to_start() {
  auto* const started = new std::vector<std::thread>;  // leaked: they never end
  started->reserve(64);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_AS, &none);
  try {
    while (started->size() < 64) {
      started->push_back(start_thread("aiacc lane 3", [] { pause(); }));
    }
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"cannot start a thread (aiacc lane 3)",
                             "process ",
                             "errno 11, expected",
                             "ulimit -u",
                             "--pids-limit"}) {
      if (text.find(part) == std::string::npos) {
        return 2;
      }
    }
    return error.code() == Code::kEngine ? 0 : 3;
  }
  return 1;
}

TEST(StartThread, FailsWithNameAndRemedy) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer needs address space of its own";
  }
  EXPECT_EXIT(_exit(fail_to_start()), testing::ExitedWithCode(0), "");
}

TEST(ThreadReserve, StartsAndEndsItsThreads) {
  ThreadReserve reserve(5);
  reserve.release();
  reserve.release();
  const ThreadReserve none(0);
}

/// In a process that has room for a few threads.
int reserve_too_many() {
  const rlimit few{std::size_t{1} << 30, std::size_t{1} << 30};
  setrlimit(RLIMIT_AS, &few);
  try {
    const ThreadReserve reserve(10'000);
  } catch (const Error& error) {
    start_thread("after", [] {}).join();  // there is room again
    return error.code() == Code::kEngine ? 0 : 2;
  }
  return 1;
}

TEST(ThreadReserve, LeavesNoThreadWhenThereIsNoRoomForAll) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer needs address space of its own";
  }
  EXPECT_EXIT(_exit(reserve_too_many()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace aiacc
