#include "csrc/control/shm/host_page.h"

#include <atomic>
#include <functional>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

void with_pages(int size, const std::function<void(int, HostPage&)>& body) {
  TcpWorld world(size);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  run_as_ranks(size, [&](int rank, RankThreads&) {
    HostPage page(world.connector(rank), ranks, 20);
    EXPECT_EQ(page.own(), rank);
    body(rank, page);
  });
}

TEST(HostPage, ASleeperIsRungForWhateverSleepsThere) {
  with_pages(2, [](int rank, HostPage& page) {
    for (std::uint64_t round = 0; round < 400; ++round) {
      const Bytes message(round % 100, static_cast<std::uint8_t>(rank));
      if (static_cast<int>(round % 2) == rank) {
        const Runner runner = round % 4 < 2 ? Runner::kCaller : Runner::kLoop;
        page.caller_runs(runner == Runner::kCaller);
        while (true) {
          page.sleeps(runner, true);
          if (page.shows(1 - rank, HostPage::kShare, round)) {
            break;
          }
          if (runner == Runner::kCaller) {
            page.sleep_as_caller(Clock::now() + std::chrono::seconds(30));
          } else {
            pollfd entry{page.bell(), POLLIN, 0};
            ASSERT_EQ(poll_until(&entry, 1, Clock::now() + std::chrono::seconds(30)), 1);
            page.clear_bell();
          }
        }
        page.sleeps(runner, false);
        page.caller_runs(false);
      }
      ASSERT_TRUE(page.show(HostPage::kShare, round, message));
      page.call_in(round, true);
      yield_until([&] { return page.shows(1 - rank, HostPage::kShare, round); });
      Bytes theirs;
      ASSERT_TRUE(page.read(1 - rank, HostPage::kShare, round, theirs));
      ASSERT_EQ(theirs, Bytes(round % 100, static_cast<std::uint8_t>(1 - rank)));
    }
  });
}

TEST(HostPage, WhatHasNoRoomIsAnnouncedForTheSocket) {
  std::atomic<int> read{0};
  with_pages(3, [&](int rank, HostPage& page) {
    EXPECT_EQ(page.show(HostPage::kShare, 0, Bytes(1 << 20, 1)), false);
    EXPECT_EQ(page.show(HostPage::kResult, 0, {}), true);
    const int next = (rank + 1) % 3;
    yield_until([&] { return page.shares(0) >= 2 && page.shows(next, HostPage::kResult, 0); });
    Bytes message{1};
    EXPECT_TRUE(page.by_socket(next, HostPage::kShare, 0));
    EXPECT_FALSE(page.read(next, HostPage::kShare, 0, message));
    EXPECT_TRUE(page.read(next, HostPage::kResult, 0, message));
    EXPECT_TRUE(message.empty());
    EXPECT_EQ(page.flags(0), 0x01010101U);
    await_all(read, 3);  // the memory stays until all have read it
  });
}

TEST(HostPage, WhoIsFurtherThanItCanBeIsNotTrusted) {
  with_pages(2, [](int rank, HostPage& page) {
    if (rank == 1) {
      page.show(HostPage::kShare, 5, {1});
      return;
    }
    yield_until([&] { return page.shows(1, HostPage::kShare, 5); });
    Bytes message;
    expect_error(status_of([&] { page.read(1, HostPage::kShare, 0, message); }),
                 Code::kPeerLost,
                 {"rank 1 shows", "cannot be trusted"});
  });
}

}  // namespace
}  // namespace aiacc
