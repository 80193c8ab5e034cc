// Connections of nobody in particular, and descriptors that run out, while ranks connect.

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/process.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(20); }

ChannelSpec control(int peer, bool connect) { return {peer, ChannelKind::kControl, 0, connect}; }

/// Ranks 0 and 1; rank 1 connects to rank 0.
class StrangersTest : public testing::Test {
 protected:
  StrangersTest() { configure_log(LogLevel::kFatal, -1); }

  void add_strangers(int count) {
    for (int i = 0; i < count; ++i) {
      strangers_.push_back(connect_to(world_.listener(0).address(), soon()));
    }
  }

  void expect_connected() {
    run_as_ranks(2, [&](int rank) {
      const ChannelSpec spec = control(1 - rank, rank == 1);
      EXPECT_EQ(world_.connector(rank).establish({spec}).size(), 1U);
    });
  }

  TcpWorld world_{2};
  std::vector<Socket> strangers_;
};

/// The process had 200 descriptors, and strangers took all of them.
TEST_F(StrangersTest, ManyOfThemDoNotTakeAllDescriptors) {
  add_strangers(300);
  const DescriptorLimit limit(40);
  expect_connected();
}

TEST_F(StrangersTest, ManyOfThemAreNotAllHeld) {
  add_strangers(300);
  expect_connected();
  std::size_t open = 0;
  for (Socket& stranger : strangers_) {
    char byte = 0;
    open += status_of([&] { stranger.recv_some(&byte, 1, "rank 0"); }).ok() ? 1 : 0;
  }
  EXPECT_LE(open, Greetings::kMost);
}

/// Nobody accepts while a job runs: as many strangers wait as the kernel lets them, at every rank.
TEST_F(StrangersTest, BacklogsFullOfThemAreClearedWhenRanksConnect) {
  for (const int rank : {0, 1}) {
    const std::string address = world_.listener(rank).address();
    ASSERT_EQ(listen(world_.listener(rank).fd(), 100), 0);
    bool full = false;
    for (int i = 0; i < 200 && !full; ++i) {
      const auto attempt = std::chrono::milliseconds(50);
      full = !status_of([&] {
                strangers_.push_back(connect_to(address, Clock::now() + attempt));
              }).ok();
    }
    ASSERT_TRUE(full) << "the backlog takes more than this test opens";
  }
  // Both ways, so that neither may wait for the other to accept.
  run_as_ranks(2, [&](int rank) {
    const int peer = 1 - rank;
    const auto connecting = static_cast<std::uint16_t>(rank);
    const auto accepting = static_cast<std::uint16_t>(peer);
    EXPECT_EQ(world_.connector(rank)
                  .establish({{peer, ChannelKind::kRing, connecting, true},
                              {peer, ChannelKind::kRing, accepting, false}})
                  .size(),
              2U);
  });
}

/// A rank whose connection had to give way comes again.
TEST_F(StrangersTest, AConnectionThatIsClosedUnansweredIsOpenedAgain) {
  std::thread connecting(
      [this] { EXPECT_EQ(world_.connector(1).establish({control(0, true)}).size(), 1U); });
  Listener& listener = world_.listener(0);
  for (int closed = 0; closed < 3;) {
    pollfd entry{listener.fd(), POLLIN, 0};
    poll(&entry, 1, 1000);
    closed += listener.accept().valid() ? 1 : 0;
  }
  EXPECT_EQ(world_.connector(0).establish({control(1, false)}).size(), 1U);
  connecting.join();
}

/// That a connection to `peer` cannot be had with so few descriptors.
void expect_too_few(int descriptors, Connector& connector, const ChannelSpec& spec) {
  // The limit ends before the error is looked at: UBSan wants a descriptor for that.
  const auto establish = [&] {
    const DescriptorLimit limit(descriptors);
    connector.establish({spec});
  };
  expect_error(
      status_of(establish), Code::kEngine, {"ulimit -n", "files and sockets open (its limit is "});
}

/// It used to spin until the deadline, and then to miss the rank that had come.
TEST_F(StrangersTest, WhoCannotAcceptSaysSoAndTellsWhoConnects) {
  add_strangers(1);
  // One for the event of who waits, none for the connection.
  expect_too_few(1, world_.connector(0), control(1, false));
  pollfd entry{strangers_[0].fd(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 20'000), 1);
  std::uint8_t answer = 0;
  ASSERT_EQ(strangers_[0].recv_some(&answer, 1, "rank 0"), 1U);
  EXPECT_EQ(answer, kNoDescriptors);
}

/// It used to try until the deadline, and then to blame the network.
TEST_F(StrangersTest, WhoCannotConnectOrEvenWaitSaysSo) {
  expect_too_few(1, world_.connector(1), control(0, true));
  expect_too_few(0, world_.connector(1), control(0, true));
}

}  // namespace
}  // namespace aiacc
