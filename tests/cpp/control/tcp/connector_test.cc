#include "csrc/control/tcp/connector.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/base/log.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/mutator.h"
#include "tests/cpp/support/process.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

using namespace std::chrono_literals;

const JobToken kToken{1, 2, 3};  // TcpWorld's

ChannelSpec control(int peer, bool connect, std::uint16_t lane = 0) {
  return {peer, ChannelKind::kControl, lane, connect};
}

void send_all(Socket& socket, const void* data, std::size_t bytes) {
  ASSERT_EQ(socket.send_some(data, bytes, "rank 0"), bytes);
}

std::uint8_t receive_byte(Socket& socket) {
  std::uint8_t byte = 0;
  while (socket.recv_some(&byte, 1, "the other rank") == 0) {
    pollfd entry{socket.fd(), POLLIN, 0};
    poll(&entry, 1, 1000);
  }
  return byte;
}

/// Connects, tells each peer `word(this rank, spec)`, and expects what the peer says there.
template <class Word>
void talk(Connector& connector, const std::vector<ChannelSpec>& specs, Word word) {
  std::vector<Socket> sockets = connector.establish(specs);
  ASSERT_EQ(sockets.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto mine = static_cast<std::uint8_t>(word(connector.rank(), specs[i]));
    send_all(sockets[i], &mine, 1);
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(receive_byte(sockets[i]), word(specs[i].peer, specs[i]));
  }
}

class ConnectorTest : public testing::Test {
 protected:
  ConnectorTest() { configure_log(LogLevel::kFatal, -1); }

  /// A process that is no good rank 1, on its way to rank 0's listener.
  Hello good_hello() const {
    Hello hello{};
    hello.magic = 0x43414941;
    hello.version = 2;
    hello.epoch = 1;
    hello.from = 1;
    hello.to = 0;
    hello.kind = static_cast<std::uint8_t>(ChannelKind::kControl);
    hello.token = kToken;
    return hello;
  }

  /// Rank 0 accepts from rank 1 while `intrude` does what it wants, then rank 1 connects.
  void expect_undisturbed(const std::function<void(const std::string& address)>& intrude) {
    TcpWorld world(2);
    std::vector<Socket> accepted;
    std::thread acceptor([&] { accepted = world.connector(0).establish({control(1, false)}); });
    intrude(world.listener(0).address());
    std::vector<Socket> connected = world.connector(1).establish({control(0, true)});
    acceptor.join();
    ASSERT_EQ(accepted.size(), 1U);
    const std::uint8_t byte = 42;
    send_all(connected[0], &byte, 1);
    EXPECT_EQ(receive_byte(accepted[0]), 42);
  }

  /// What rank 1, made by `make`, is told by rank 0.
  Status refusal(JobToken token, std::uint32_t epoch, int believed_rank) {
    Listener listener("127.0.0.1");
    Listener other("127.0.0.1");
    const std::vector<std::string> addresses = {listener.address(), listener.address(), ""};
    Connector zero(listener, addresses, 0, kToken, 1, 20);
    Connector one(other, addresses, 1, token, epoch, 20);
    std::thread acceptor([&] {
      // Goes on accepting until the good rank 2 is there.
      EXPECT_EQ(zero.establish({control(2, false)}).size(), 1U);
    });
    const Status refused = status_of([&] { one.establish({control(believed_rank, true)}); });
    Connector(other, addresses, 2, kToken, 1, 20).establish({control(0, true)});
    acceptor.join();
    return refused;
  }
};

TEST_F(ConnectorTest, ConnectsAllRanksOnSeveralLanes) {
  for (const int size : {2, 3, 5}) {
    TcpWorld world(size);
    run_as_ranks(size, [&](int rank) {
      // Twice, as the control plane and the engine do; some may be late.
      for (const ChannelKind kind : {ChannelKind::kControl, ChannelKind::kRing}) {
        std::vector<ChannelSpec> specs;
        for (int peer = 0; peer < size; ++peer) {
          for (std::uint16_t lane = 0; peer != rank && lane < 3; ++lane) {
            specs.push_back({peer, kind, lane, rank < peer});
          }
        }
        talk(world.connector(rank), specs, [](int from, const ChannelSpec& spec) {
          return from * 16 + spec.lane;
        });
      }
    });
  }
}

/// Every rank asks from several threads, in another order than the others do, for connections that
/// differ in their lane or in their split_id only.
TEST_F(ConnectorTest, ServesSeveralCallsAtATime) {
  constexpr int kSize = 3;
  constexpr int kCalls = 4;
  TcpWorld world(kSize);
  run_as_ranks(kSize, [&](int rank) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kCalls; ++i) {
      const auto call = static_cast<std::uint32_t>((i + rank) % kCalls);
      threads.emplace_back([&, call] {
        std::vector<ChannelSpec> specs;
        for (int peer = 0; peer < kSize; ++peer) {
          if (peer != rank) {
            specs.push_back({peer,
                             ChannelKind::kPair,
                             static_cast<std::uint16_t>(call % 2),
                             rank < peer,
                             call / 2});
          }
        }
        talk(world.connector(rank), specs, [call](int from, const ChannelSpec&) {
          return from * 16 + static_cast<int>(call);
        });
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

TEST_F(ConnectorTest, AnInterruptEndsTheWait) {
  TcpWorld world(2);
  for (const bool connects : {false, true}) {
    Event interrupt;
    std::thread interrupter([&] { interrupt.set(); });
    const std::vector<ChannelSpec> specs = {control(1, connects)};
    expect_error(status_of([&] { world.connector(0).establish(specs, interrupt.fd()); }),
                 Code::kShutdown);
    interrupter.join();
  }
}

TEST_F(ConnectorTest, StrangersDoNotDisturb) {
  const std::string request = "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
  std::vector<Socket> staying;  // 20 that say nothing, and one each that says too much or little
  expect_undisturbed([&](const std::string& address) {
    for (const std::string& text :
         {request, std::string("AIAC"), std::string("AI"), std::string()}) {
      for (const bool stays : {true, false}) {
        Socket stranger = connect_to(address, soon());
        if (!text.empty()) {
          send_all(stranger, text.data(), text.size());
        }
        if (stays) {
          staying.push_back(std::move(stranger));
        }
      }
    }
    for (int i = 0; i < 20; ++i) {
      staying.push_back(connect_to(address, soon()));
    }
  });
}

TEST_F(ConnectorTest, DamagedHellosDoNotDisturb) {
  const Hello good = good_hello();
  Bytes valid(sizeof good);
  std::memcpy(valid.data(), &good, sizeof good);
  expect_undisturbed([&](const std::string& address) {
    for (std::uint32_t seed = 0; seed < 500; ++seed) {
      const Bytes bytes = Mutator(seed).damage(valid);
      Hello hello{};
      std::memcpy(&hello, bytes.data(), std::min(bytes.size(), sizeof hello));
      std::memset(hello.reserved, 0, sizeof hello.reserved);
      if (bytes.size() >= sizeof hello && std::memcmp(&hello, &good, sizeof hello) == 0) {
        continue;  // still rank 1's own
      }
      Socket socket = connect_to(address, soon());
      if (!bytes.empty()) {
        send_all(socket, bytes.data(), bytes.size());
      }
    }
  });
}

TEST_F(ConnectorTest, ARankOfAnotherJobEpochOrAddressIsRefused) {
  expect_error(refusal({9, 9, 9}, 1, 0), Code::kPeerLost, {"job token mismatch"});
  expect_error(refusal(kToken, 2, 0), Code::kPeerLost, {"another init/shutdown cycle"});
  // The address of rank 1 leads to rank 0.
  expect_error(refusal(kToken, 1, 1), Code::kPeerLost, {"another rank than its address says"});
}

TEST_F(ConnectorTest, AnotherVersionIsRefused) {
  Hello hello = good_hello();
  hello.version = 77;
  Socket socket;
  expect_undisturbed([&](const std::string& address) {
    socket = connect_to(address, soon());
    send_all(socket, &hello, sizeof hello);
    EXPECT_EQ(receive_byte(socket), 2);
  });
}

TEST_F(ConnectorTest, TheSecondProcessOfOneRankIsRefused) {
  Listener listener("127.0.0.1");
  Listener others("127.0.0.1");
  const std::vector<std::string> addresses = {listener.address(), "", ""};
  Connector zero(listener, addresses, 0, kToken, 1, 20);
  Connector one(others, addresses, 1, kToken, 1, 20);
  Connector twin(others, addresses, 1, kToken, 1, 20);
  Connector two(others, addresses, 2, kToken, 1, 20);
  std::thread acceptor([&] { zero.establish({control(1, false), control(2, false)}); });
  one.establish({control(0, true)});
  expect_error(status_of([&] { twin.establish({control(0, true)}); }),
               Code::kPeerLost,
               {"two processes have the same rank"});
  two.establish({control(0, true)});
  acceptor.join();
}

TEST_F(ConnectorTest, MissingRanksAreNamedAtTheDeadline) {
  TcpWorld world(4, 0.1);
  const std::vector<ChannelSpec> specs = {control(1, false), control(3, false)};
  expect_error(
      status_of([&] { world.connector(0).establish(specs); }), Code::kTimeout, {"rank(s) 1, 3"});
}

/// Nobody listens any more at the address of rank 1.
TEST_F(ConnectorTest, ARankThatIsGoneIsNamedLongBeforeTheDeadline) {
  TcpWorld world(2, 600);
  const std::string closed = world.listener(1).address();
  world.hang_up(1);
  for (const bool connect : {true, false}) {
    expect_error(status_of([&] { world.connector(0).establish({control(1, connect)}); }),
                 Code::kPeerLost,
                 {closed, "rank 1 has died or given up"});
  }
}

/// Connections of those who wait for it used to pile up there, one a second for each of them, until
/// there was no room for a rank that connects.
TEST_F(ConnectorTest, ARankThatIsLateIsWaitedForAndProbedByOneConnectionOfEach) {
  TcpWorld world(4, 600);
  run_as_ranks(4, [&](int rank) {
    if (rank > 0) {
      const Status end = status_of(
          [&] { world.connector(rank).establish({control(0, false), control(0, false, 1)}); });
      if (rank == 1) {
        EXPECT_TRUE(end.ok()) << end.message();
      } else {
        expect_error(end, Code::kPeerLost, {"rank 0 has died or given up"});
      }
      return;
    }
    // Longer than between two probes: nothing tells when they come.
    std::this_thread::sleep_for(2200ms);
    tcp_info info{};
    socklen_t bytes = sizeof info;
    ASSERT_EQ(getsockopt(world.listener(0).fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes), 0);
    EXPECT_EQ(info.tcpi_unacked, 3U) << "of a listener these are the connections that wait";
    world.connector(0).establish({control(1, true), control(1, true, 1), control(2, true)});
    world.hang_up(0);
  });
}

/// Whoever may interrupt the wait judges the others: one that is busy for longer than the deadline
/// is waited for, whichever of the two connects.
TEST_F(ConnectorTest, ARankThatIsBusyHasNoDeadlineInAUnit) {
  for (const bool connects : {false, true}) {
    TcpWorld world(2, 0.2);
    const Event interrupt;
    run_as_ranks(2, [&](int rank) {
      if (rank == 1) {
        std::this_thread::sleep_for(600ms);  // it is busy
      }
      const ChannelSpec spec = control(1 - rank, connects == (rank == 0));
      EXPECT_EQ(world.connector(rank).establish_in_unit({spec}, interrupt.fd()).size(), 1U);
    });
  }
}

/// Its host need not be busy to answer, so that has a deadline.
TEST_F(ConnectorTest, AnAddressThatIsOutOfReachIsNamedAtTheDeadline) {
  Listener listener("127.0.0.1");
  const Listener mute("127.0.0.1");
  ASSERT_EQ(listen(mute.fd(), 0), 0);
  const Socket filling = connect_to(mute.address(), soon());  // its queue is full: it is mute
  Connector zero(listener, {listener.address(), mute.address()}, 0, kToken, 1, 0.2);
  const Event interrupt;
  expect_error(status_of([&] { zero.establish_in_unit({control(1, true)}, interrupt.fd()); }),
               Code::kTimeout,
               {"rank 0 is not connected to rank 1: ", "is that host reachable"});
}

TEST_F(ConnectorTest, AListenerThatNeverAnswersIsNamed) {
  TcpWorld world(2, 0.1);
  expect_error(status_of([&] { world.connector(1).establish({control(0, true)}); }),
               Code::kTimeout,
               {"rank 0 at " + world.listener(0).address()});
}

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

/// Nobody accepts in between: as many strangers wait as the kernel lets them, at every rank.
TEST_F(StrangersTest, BacklogsFullOfThemAreClearedWhenRanksConnect) {
  for (const int rank : {0, 1}) {
    const std::string address = world_.listener(rank).address();
    ASSERT_EQ(listen(world_.listener(rank).fd(), 100), 0);
    bool full = false;
    for (int i = 0; i < 200 && !full; ++i) {
      full =
          !status_of([&] { strangers_.push_back(connect_to(address, Clock::now() + 50ms)); }).ok();
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
