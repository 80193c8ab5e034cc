// What is waited for in MPI, and the thread that keeps it going, with an MPI that is none.

#include "csrc/engines/mpi/mpi_request.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/spin.h"
#include "csrc/engines/mpi/mpi_progress.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

constexpr int kRequests = 8;
constexpr int kPending = -1;

/// What MPI_Test says of each request: pending, 0, or an error's code.
std::array<std::atomic<int>, kRequests> answers;

/// An MPI whose requests are numbers from 1 on, and 0 when done.
MpiPlugin request_plugin() {
  MpiPlugin plugin{};
  plugin.describe = [](int code, char* text, std::size_t bytes) {
    std::snprintf(text, bytes, "made up %d", code);
  };
  plugin.test = [](MpiHandle* request, int* done) {
    const int answer = answers[*request - 1].load();
    *done = answer == 0 ? 1 : 0;
    return answer == kPending ? 0 : answer;
  };
  return plugin;
}

class MpiRequestTest : public testing::Test {
 protected:
  MpiRequestTest() {
    for (auto& answer : answers) {
      answer.store(kPending);
    }
  }

  /// A wait for a request in a thread of its own.
  std::unique_ptr<BlockedCall> waiting(int request, const WaitCheck& check = [] {}) {
    return std::make_unique<BlockedCall>([this, request, check] {
      MpiHandle handle = static_cast<MpiHandle>(request) + 1;
      Spin spin(std::chrono::nanoseconds(0));
      wait_for_request(plugin_, &handle, spin, check);
    });
  }

  const MpiPlugin plugin_ = request_plugin();
};

TEST_F(MpiRequestTest, ManyWaitsEndInAnyOrder) {
  for (const bool newest_first : {true, false}) {
    std::vector<std::unique_ptr<BlockedCall>> waits;
    for (int request = 0; request < kRequests; ++request) {
      answers[request].store(kPending);
      waits.push_back(waiting(request));
    }
    for (int turn = 0; turn < kRequests; ++turn) {
      const int request = newest_first ? kRequests - 1 - turn : turn;
      answers[request].store(0);
      // Whoever tested before, somebody does still.
      expect_error(waits[request]->join(), Code::kOk);
    }
  }
}

TEST_F(MpiRequestTest, AnErrorReachesItsOwnerAlone) {
  const std::unique_ptr<BlockedCall> waits[] = {waiting(0), waiting(1), waiting(2)};
  answers[1].store(77);
  const std::string error = waits[1]->join().message();
  EXPECT_NE(error.find("made up 77"), std::string::npos) << error;
  for (const int request : {0, 2}) {
    answers[request].store(0);
    expect_error(waits[request]->join(), Code::kOk);
  }
}

TEST_F(MpiRequestTest, ACancelledWaitLeavesTheOthersRunning) {
  std::atomic<bool> cancelled{false};
  const WaitCheck check = [&] {
    if (cancelled.load()) {
      throw Error(Code::kShutdown, "cancelled");
    }
  };
  std::vector<std::unique_ptr<BlockedCall>> waits;
  for (int request = 0; request < kRequests; ++request) {
    waits.push_back(request % 2 == 0 ? waiting(request, check) : waiting(request));
  }
  cancelled.store(true);
  for (int request = 0; request < kRequests; request += 2) {
    expect_error(waits[request]->join(), Code::kShutdown, {"cancelled"});
  }
  for (int request = 1; request < kRequests; request += 2) {
    answers[request].store(0);
    expect_error(waits[request]->join(), Code::kOk);
  }
}

constexpr MpiHandle kCommunicator = 7;

std::atomic<int> calls{0};
std::atomic<int> strays{0};  ///< calls with another communicator
std::atomic<bool> inside{false};
std::atomic<bool> held{false};  ///< calls do not return

MpiPlugin progress_plugin() {
  MpiPlugin plugin{};
  plugin.progress = [](MpiHandle communicator) {
    inside = true;
    ++calls;
    strays += communicator == kCommunicator ? 0 : 1;
    yield_until([] { return !held.load(); });
    inside = false;
    return 1;  // an error, which is somebody else's
  };
  return plugin;
}

class MpiProgressTest : public testing::Test {
 protected:
  MpiProgressTest() {
    calls = 0;
    held = false;
  }

  const MpiPlugin plugin_ = progress_plugin();
};

TEST_F(MpiProgressTest, CallsMpiAgainAndAgain) {
  MpiProgress progress(plugin_, kCommunicator);
  yield_until([] { return calls.load() >= 50; });
  EXPECT_EQ(strays, 0);
}

TEST_F(MpiProgressTest, StopReturnsWhenTheThreadIsOutsideMpi) {
  held = true;
  MpiProgress progress(plugin_, kCommunicator);
  yield_until([] { return inside.load(); });
  std::thread other([&] {
    progress.stop();
    EXPECT_FALSE(inside);
  });
  held = false;
  progress.stop();
  EXPECT_FALSE(inside);
  other.join();
  const int last = calls;
  progress.stop();
  EXPECT_EQ(calls, last);
}

TEST_F(MpiProgressTest, RestBeginsWhenTheThreadIsOutsideMpi) {
  held = true;
  MpiProgress progress(plugin_, kCommunicator);
  yield_until([] { return inside.load(); });
  std::thread other([&] {
    progress.rest(true);
    EXPECT_FALSE(inside);
  });
  held = false;
  other.join();
  for (const bool rests : {true, false}) {  // what is queued moves while it rests, too
    progress.rest(rests);
    const int last = calls;
    yield_until([&] { return calls.load() > last; });
  }
}

}  // namespace
}  // namespace aiacc
