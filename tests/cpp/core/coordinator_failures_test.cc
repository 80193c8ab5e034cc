#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/log.h"
#include "csrc/core/coordinator.h"
#include "csrc/core/submission/stall_inspector.h"
#include "csrc/engines/cancellation.h"
#include "tests/cpp/support/coordinators.h"
#include "tests/cpp/support/gate.h"
#include "tests/cpp/support/text.h"

namespace aiacc {
namespace {

class CoordinatorFailuresTest : public CoordinatorSuite {};

TEST_P(CoordinatorFailuresTest, ShutdownFailsWhatIsOutstandingOnEveryRank) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    float value = 1;
    const std::string mine = "only on rank " + std::to_string(rank);
    const Handle waited = submit(coordinator, make_request(mine, {1}), &value, &value);
    barrier(coordinator, "all have submitted");
    std::thread waiter;
    if (rank == 0) {
      waiter = std::thread(
          [&] { expect_error(status_of([&] { coordinator.wait(waited); }), Code::kShutdown); });
      coordinator.shutdown("'s script has ended");
      waiter.join();
      coordinator.shutdown();
    } else {
      expect_error(
          status_of([&] { coordinator.wait(waited); }), Code::kShutdown, {"rank 0's script has"});
    }
    const Status later = status_of([&] { sum(coordinator, "later", 1); });
    EXPECT_EQ(later.code(), Code::kShutdown);
    EXPECT_EQ(later.message(), "[core] rank 0's script has ended");
    expect_error(status_of([&] { coordinator.poll(waited); }), Code::kInvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorFailuresTest,
                         worlds({{Transport::kFake, {2, 5}},
                                 {Transport::kHost, {2}},
                                 {Transport::kTcp, {3}},
                                 {Transport::kHosts, {5}}}),
                         setting_name);

/// Its all-reduces end long after those of the others, unless they are aborted.
class Straggler : public FakeEngine {
 public:
  using FakeEngine::FakeEngine;

  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override {
    FakeEngine::all_reduce(lane, send, recv, count, reduction);
    pollfd entry{cancellation_.fd(), POLLIN, 0};
    poll(&entry, 1, 1500);
    cancellation_.check();
  }
  void abort(const Status& status) noexcept override {
    FakeEngine::abort(status);
    cancellation_.set(status);
  }

 private:
  Cancellation cancellation_;
};

/// The last bytes of a rank that has left take longer than a second.
TEST(CoordinatorLanes, WhatMovesAfterAShutdownGoesOn) {
  CoordinatorWorld world;
  world.make_engine = [](int rank, EngineContext*, std::shared_ptr<FakeHub> hub) {
    return rank == 0 ? std::make_unique<FakeEngine>(std::move(hub), rank)
                     : std::make_unique<Straggler>(std::move(hub), rank);
  };
  with_coordinators(world, [&](int rank, RankParts& parts) {
    float value = 1;
    finish(*parts.coordinator, submit(*parts.coordinator, make_request("x", {1}), &value, &value));
    EXPECT_EQ(value, 2);
    if (rank == 0) {
      parts.coordinator->shutdown();
    }
  });
}

/// A lane hangs in its engine; another rank leaves. The engine is aborted after a while.
TEST(CoordinatorLanes, ShutdownEndsALaneThatHangs) {
  CoordinatorWorld world;
  Gate gate(false);  // as if stuck in a system call, until rank 0 has given up
  world.before = [&](int rank, int, std::size_t) {
    if (rank == 1) {
      gate.pass();
    }
  };
  with_coordinators(world, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    float value = 1;
    const Handle handle = submit(coordinator, make_request("x", {1}), &value, &value);
    coordinator.flush();
    if (rank == 0) {
      gate.await(1);
      coordinator.shutdown();
    }
    expect_error(status_of([&] { coordinator.wait(handle); }), Code::kShutdown);
    if (rank == 0) {
      gate.open();
    }
  });
}

/// All ranks hear the same text, so "this process" would be each of them.
TEST(CoordinatorFailures, NameTheRankThatReportsThem) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"[test] no room for ranks", "[core] rank 1 reports: [test] no room for ranks"},
      {"[test] rank(s) 0, 1 differ", "[test] rank(s) 0, 1 differ"},
  };
  for (const auto& [thrown, told] : rows) {
    CoordinatorWorld world;
    world.before = [text = thrown](int rank, int, std::size_t) {
      if (rank == 1) {
        throw Error(Code::kEngine, text);
      }
    };
    with_coordinators(world, [&, &told = told](int, RankParts& parts) {
      EXPECT_EQ(told, fatal_status(*parts.coordinator, "x").message());
    });
  }
}

TEST(CoordinatorCycles, StartsAndStopsTwoHundredTimes) {
  for (int i = 0; i < 200; ++i) {
    CoordinatorWorld world(2, i % 2 == 0 ? Transport::kFake : Transport::kTcp);
    with_coordinators(world, [&](int, RankParts& parts) {
      if (i % 3 != 0) {
        EXPECT_EQ(sum(*parts.coordinator, "x", 1), 2.0F);
      }
    });
  }
}

class StallTest : public CoordinatorSuite {};

TEST_P(StallTest, WarnsWithNamesAndRanksAndGoesOn) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("aiacc_stall_" + std::to_string(getpid()) + ".json");
  world_.options.stall_warn_s = 0.02;
  world_.options.stall_file = path.string();
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    yield_until([&] {  // there is no event
      return rank != 1 || occurrences(read_file(path), R"("missing_ranks": [1)") > 0;
    });
    EXPECT_EQ(sum(*parts.coordinator, "late", 1), 3.0F);
    barrier(*parts.coordinator, "end");
  });
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(is_json(line)) << line;
    expect_parts(line, {R"("tensor": "late")"});
  }
  std::filesystem::remove(path);
}

/// Every rank waits for something of its own, and any of them may ask the others.
TEST_P(StallTest, AJobReportsOnceInAPeriodWhoeverAsks) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("aiacc_stall_" + std::to_string(getpid()) + ".json");
  world_.options.stall_warn_s = 0.1;
  world_.options.stall_file = path.string();
  testing::internal::CaptureStderr();
  const auto start = Clock::now();
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    configure_log(LogLevel::kWarning, -1);
    const std::string mine = "t" + std::to_string(rank);
    float value = 1;
    const Handle handle = submit(*parts.coordinator, make_request(mine, {1}), &value, &value);
    // There is no event.
    yield_until([&] { return rank != 1 || occurrences(read_file(path), R"("t2")") >= 4; });
    if (rank != 1) {
      expect_error(status_of([&] { parts.coordinator->wait(handle); }), Code::kShutdown);
    }
  });
  const std::chrono::duration<double> elapsed = Clock::now() - start;
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string file = read_file(path);
  const auto reports = occurrences(log, "[stall] tensor '");
  const auto left_out = occurrences(log, "still being written");
  EXPECT_GE(reports, 2U);
  EXPECT_LE(static_cast<double>(reports), elapsed.count() / world_.options.stall_warn_s);
  for (const std::string name : {"t0", "t1", "t2"}) {
    EXPECT_GE(occurrences(log, "'" + name + "' has waited"), reports - 1) << log;
    EXPECT_GE(occurrences(file, '"' + name + '"') + left_out, reports - 1) << file << log;
  }
  std::filesystem::remove(path);
}

TEST_P(StallTest, FailsTheJobOnEveryRankAndSaysWhatEachWaitsForWhenTheLimitIsReached) {
  world_.options.stall_fail_s = 0.05;
  world_.options.patience = std::chrono::hours(1);  // nobody joins who has not submitted
  with_coordinators(world_, [](int rank, RankParts& parts) {
    const std::string name = rank == 2 ? "other" : "common";
    const Status status = status_of([&] { sum(*parts.coordinator, name, 1); });
    const bool common = status.message().find("'common' has") != std::string::npos;
    expect_error(
        status,
        Code::kTimeout,
        {common ? "'common' has waited" : "'other' has waited",
         common ? "for rank(s) 2; rank(s) 0, 1 have submitted it; rank(s) 2 wait for 'other'"
                : "for rank(s) 0, 1; rank(s) 2 have submitted it; rank(s) 0, 1 wait for "
                  "'common'"});
  });
}

/// As a file system that stands still: a FIFO that nobody reads until the end.
TEST(StallFile, KeepsNobodyThoughItCannotBeWritten) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("aiacc_stall_" + std::to_string(getpid()) + ".fifo");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  StallFile file(path);
  const std::vector<Stall> stalls = {{"late", 60, RankSet(0), RankSet(1)}};
  file.append(stalls);
  configure_log(LogLevel::kWarning, -1);
  testing::internal::CaptureStderr();
  file.append(stalls);
  expect_parts(testing::internal::GetCapturedStderr(), {"still being written"});
  EXPECT_EQ(read_file(path), stall_json(stalls[0]) + '\n');
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         StallTest,
                         worlds({{Transport::kFake, {3}}, {Transport::kTcp, {3}}}),
                         setting_name);

}  // namespace
}  // namespace aiacc
