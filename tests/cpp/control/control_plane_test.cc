#include "csrc/control/control_plane.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/log.h"
#include "csrc/control/control_plane.h"
#include "tests/cpp/support/coordinators.h"
#include "tests/cpp/support/gate.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

/// Shares are sorted lists of numbers, folding merges them: nothing may be lost or come twice.
void merge(Bytes& mine, const Bytes& theirs, const RankBlock&) {
  Bytes both(mine.size() + theirs.size());
  std::merge(mine.begin(), mine.end(), theirs.begin(), theirs.end(), both.begin());
  mine = both;
}

/// While it lives, this process cannot make memory to share.
class NoMemory {
 public:
  explicit NoMemory(bool none) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{none ? 1 : before_.rlim_cur, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~NoMemory() { setrlimit(RLIMIT_FSIZE, &before_); }
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;

 private:
  rlimit before_{};
};

/// What all transports promise.
class ControlPlaneTest : public testing::TestWithParam<WorldSetting> {
 protected:
  ControlPlaneTest() { configure_log(LogLevel::kFatal, -1); }

  int size() const { return GetParam().size; }

  /// `body(rank, plane)`; the failure of one rank interrupts the others.
  template <class Body>
  void with_planes(Body body) {
    const NoMemory no_memory(GetParam().transport == Transport::kNoMemory);
    TcpWorld world(size());
    run_as_ranks(size(), [&](int rank, RankThreads& rank_threads) {
      ControlPlaneOptions options;
      options.peer_timeout_s = 1000;  // A wake-up that is missed is a hang, not a delay.
      options.host_of = hosts_of(GetParam().transport, size());
      ControlPlane plane(&world.connector(rank), options);
      const auto guard =
          rank_threads.on_failure([&](const Status& status) { plane.interrupt(status); });
      plane.has_share(true);  // whoever starts a round wakes it
      body(rank, plane);
      plane.abort({Code::kShutdown, "rank " + std::to_string(rank) + " is done"});
    });
  }

  /// One round in which every rank gives its number.
  void meet(int rank, ControlPlane& plane) const {
    Bytes message = {static_cast<std::uint8_t>(rank)};
    plane.all_reduce(message, merge, Runner::kLoop);
    ASSERT_EQ(message, everybody());
  }
  Bytes everybody() const {
    Bytes ranks(static_cast<std::size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), std::uint8_t{0});
    return ranks;
  }
};

/// What needs others to be seen.
class ControlPlanesTest : public ControlPlaneTest {};

TEST_P(ControlPlaneTest, EveryRoundFoldsEveryShareOnce) {
  with_planes([&](int rank, ControlPlane& plane) {
    EXPECT_EQ(plane.rank(), rank);
    EXPECT_EQ(plane.size(), size());
    for (std::uint64_t round = 0; round < 200; ++round) {
      EXPECT_EQ(plane.rounds(), round);
      meet(rank, plane);
    }
  });
}

TEST_P(ControlPlaneTest, TheOrderOfArrivalDoesNotMatter) {
  constexpr int kRounds = 60;
  std::vector<std::atomic<int>> arrived(kRounds);
  std::vector<std::vector<int>> turns(kRounds, std::vector<int>(static_cast<std::size_t>(size())));
  std::mt19937 random(1);
  for (auto& turn : turns) {
    std::iota(turn.begin(), turn.end(), 0);
    std::shuffle(turn.begin(), turn.end(), random);
  }
  with_planes([&](int rank, ControlPlane& plane) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      const int turn = turns[round][static_cast<std::size_t>(rank)];
      yield_until([&] { return arrived[round].load() >= turn; });
      ++arrived[round];
      meet(rank, plane);
    }
  });
}

TEST_P(ControlPlaneTest, IdleRanksSleepUntilSomebodyStartsARound) {
  with_planes([&](int rank, ControlPlane& plane) {
    for (int round = 0; round < 60; ++round) {
      if (rank != round % size()) {
        while (!plane.round_pending()) {
          plane.wait(never());
          plane.service();
        }
      }
      meet(rank, plane);
    }
  });
}

TEST_P(ControlPlaneTest, LargeSharesOfAllRanksPassEachOther) {
  constexpr std::size_t kBytes = 1 << 20;
  with_planes([&](int rank, ControlPlane& plane) {
    for (int round = 0; round < 2; ++round) {
      Bytes message(kBytes, static_cast<std::uint8_t>(rank));
      const auto append = [](Bytes& mine, const Bytes& theirs, const RankBlock&) {
        mine.insert(mine.end(), theirs.begin(), theirs.end());
      };
      plane.all_reduce(message, append, Runner::kLoop);
      ASSERT_EQ(message.size(), static_cast<std::size_t>(size()) * kBytes);
      Bytes ranks;
      for (std::size_t at = 0; at < message.size(); at += kBytes) {
        ranks.push_back(message[at]);
        EXPECT_EQ(std::memcmp(&message[at], &message[at + 1], kBytes - 1), 0);
      }
      std::sort(ranks.begin(), ranks.end());
      ASSERT_EQ(ranks, everybody());
    }
  });
}

TEST_P(ControlPlaneTest, AWakeIsRememberedUntilItIsTaken) {
  with_planes([&](int, ControlPlane& plane) {
    plane.wake();
    plane.wait(never());  // takes it
    const auto deadline = Clock::now() + std::chrono::milliseconds(20);
    plane.wait(deadline);
    if (size() == 1) {  // others may be leaving, which ends a wait
      EXPECT_GE(Clock::now(), deadline);
    }
  });
}

TEST_P(ControlPlaneTest, NoWakeIsLost) {
  with_planes([&](int, ControlPlane& plane) {
    std::atomic<int> seen{0};
    std::atomic<int> woken{0};
    std::thread sleeper([&] {
      while (seen.load() < 300) {
        plane.wait(never());
        seen.store(woken.load());
      }
    });
    for (int i = 1; i <= 300; ++i) {
      woken.store(i);
      plane.wake();
      yield_until([&] { return seen.load() >= i; });
    }
    sleeper.join();
  });
}

/// A timer that kept its first time would end these waits an hour late.
TEST_P(ControlPlaneTest, ATimerEndsAWaitAtTheEarliestOfItsTimes) {
  with_planes([&](int, ControlPlane& plane) {
    for (int i = 0; i < 20; ++i) {
      plane.wake_at(Clock::now() + std::chrono::hours(1));
      plane.wake_at(Clock::now() + std::chrono::milliseconds(1));
      plane.wake_at(Clock::now() + std::chrono::hours(1));
      plane.wait(never());
      plane.wake_at(Clock::now());
      plane.wait(never());
    }
  });
}

/// The loop thread sleeps meanwhile, and tells the caller of what comes.
TEST_P(ControlPlanesTest, CallersRunRoundsAndLearnOfTheEndInThem) {
  with_planes([&](int rank, ControlPlane& plane) {
    std::atomic<bool> over{false};
    std::thread loop([&] {
      while (!over.load()) {
        plane.wait(never());
        plane.nudge();
      }
    });
    const Runner runner = plane.lets_callers_run() ? Runner::kCaller : Runner::kLoop;
    if (runner == Runner::kCaller) {
      for (int round = 0; round < 100; ++round) {
        Bytes message = {static_cast<std::uint8_t>(rank)};
        plane.all_reduce(message, merge, runner);
        ASSERT_EQ(message, everybody());
      }
      const Status reason(Code::kTimeout, "[stall] tensor 'x' has waited long enough");
      Bytes message = {0};
      const Status status = rank == size() - 1
                                ? reason
                                : status_of([&] { plane.all_reduce(message, merge, runner); });
      plane.abort(status);
      EXPECT_EQ(status.message(), reason.message());
    }
    over.store(true);
    plane.wake();
    loop.join();
  });
}

TEST_P(ControlPlanesTest, AnInterruptEndsARunningRound) {
  Gate gate(false);
  with_planes([&](int rank, ControlPlane& plane) {
    if (rank != 0) {
      gate.pass();  // without this rank's share the round cannot end
      return;
    }
    std::thread killer([&] { plane.interrupt({Code::kShutdown, "enough"}); });
    for (int i = 0; i < 2; ++i) {  // and every later one
      Bytes message = {0};
      const Status status = status_of([&] { plane.all_reduce(message, merge, Runner::kLoop); });
      EXPECT_EQ(status.code(), Code::kShutdown);
      EXPECT_EQ(status.message(), "enough");
    }
    plane.interrupt({Code::kInternal, "later"});
    EXPECT_EQ(status_of([&] { plane.service(); }).message(), "enough") << "the first one wins";
    killer.join();
    gate.open();
  });
}

TEST_P(ControlPlaneTest, AnAbortFloodsAllRanksWithItsReason) {
  with_planes([&](int rank, ControlPlane& plane) {
    const Status reason(Code::kTimeout, "[stall] tensor 'x' has waited long enough");
    if (rank == size() - 1) {
      plane.abort(reason);
      plane.abort({Code::kInternal, "once is enough"});
      return;
    }
    const Status status = first_error_of([&] {
      plane.wait(never());
      plane.service();
    });
    plane.abort(status);  // as the coordinator does: not everybody knows everybody
    EXPECT_EQ(status.code(), reason.code());
    EXPECT_EQ(status.message(), reason.message());
  });
}

INSTANTIATE_TEST_SUITE_P(Alone, ControlPlaneTest, worlds({{Transport::kTcp, {1}}}), setting_name);

const auto kTogether = worlds({{Transport::kTcp, {2, 3, 4, 5, 6, 7, 8}},
                               {Transport::kHost, {2, 5}},
                               {Transport::kHosts, {3, 8}},
                               {Transport::kNoMemory, {2, 5}}});
INSTANTIATE_TEST_SUITE_P(Together, ControlPlaneTest, kTogether, setting_name);
INSTANTIATE_TEST_SUITE_P(Together, ControlPlanesTest, kTogether, setting_name);

}  // namespace
}  // namespace aiacc
