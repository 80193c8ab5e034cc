#include "csrc/engines/mpi/mpi_request.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/base/spin.h"

namespace aiacc {
namespace {

constexpr int kRequests = 8;
constexpr int kPending = -1;

/// What MPI_Test says of each request: pending, 0, or an error's code.
std::array<std::atomic<int>, kRequests> answers;

/// An MPI whose requests are numbers from 1 on, and 0 when done.
MpiPlugin fake_plugin() {
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

  /// Waits for a request in a thread of its own; the error's text, or "" after success.
  std::thread waiting(int request, std::string* outcome, const WaitCheck& check = [] {}) {
    return std::thread([this, request, outcome, check] {
      MpiHandle handle = static_cast<MpiHandle>(request) + 1;
      Spin spin(std::chrono::nanoseconds(0));
      try {
        wait_for_request(plugin_, &handle, spin, check);
        outcome->clear();
      } catch (const std::exception& error) {
        *outcome = error.what();
      }
    });
  }

  const MpiPlugin plugin_ = fake_plugin();
};

TEST_F(MpiRequestTest, ManyWaitsEndInAnyOrder) {
  for (const bool newest_first : {true, false}) {
    std::vector<std::string> outcomes(kRequests, "unset");
    std::vector<std::thread> threads;
    for (int request = 0; request < kRequests; ++request) {
      answers[request].store(kPending);
      threads.push_back(waiting(request, &outcomes[request]));
    }
    for (int turn = 0; turn < kRequests; ++turn) {
      const int request = newest_first ? kRequests - 1 - turn : turn;
      answers[request].store(0);
      threads[request].join();  // whoever tested before, somebody does still
      EXPECT_EQ(outcomes[request], "");
    }
  }
}

TEST_F(MpiRequestTest, AnErrorReachesItsOwnerAlone) {
  std::array<std::string, 3> outcomes;
  std::vector<std::thread> threads;
  for (int request = 0; request < 3; ++request) {
    threads.push_back(waiting(request, &outcomes[request]));
  }
  answers[1].store(77);
  threads[1].join();
  EXPECT_NE(outcomes[1].find("made up 77"), std::string::npos) << outcomes[1];
  answers[0].store(0);
  answers[2].store(0);
  threads[0].join();
  threads[2].join();
  EXPECT_EQ(outcomes[0], "");
  EXPECT_EQ(outcomes[2], "");
}

TEST_F(MpiRequestTest, ACancelledWaitLeavesTheOthersRunning) {
  std::atomic<bool> cancelled{false};
  const WaitCheck check = [&] {
    if (cancelled.load()) {
      throw std::runtime_error("cancelled");
    }
  };
  std::array<std::string, kRequests> outcomes;
  std::vector<std::thread> threads;
  for (int request = 0; request < kRequests; ++request) {
    const bool even = request % 2 == 0;
    threads.push_back(even ? waiting(request, &outcomes[request], check)
                           : waiting(request, &outcomes[request]));
  }
  cancelled.store(true);
  for (int request = 0; request < kRequests; request += 2) {
    threads[request].join();
    EXPECT_EQ(outcomes[request], "cancelled");
  }
  for (int request = 1; request < kRequests; request += 2) {
    answers[request].store(0);
    threads[request].join();
    EXPECT_EQ(outcomes[request], "");
  }
}

}  // namespace
}  // namespace aiacc
