#include "csrc/control/tcp/heartbeat.h"

#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

/// Longer than any test takes: nobody is lost.
constexpr double kNever = 600;

/// The two ends of a connection for heartbeats, of rank 0 and of rank 1.
std::pair<Socket, Socket> connected() {
  TcpWorld world(2);
  Socket ends[2];
  run_as_ranks(2, [&](int rank, RankThreads&) {
    ends[rank] = std::move(
        world.connector(rank).establish({{1 - rank, ChannelKind::kHeartbeat, 0, rank == 1}})[0]);
  });
  return {std::move(ends[0]), std::move(ends[1])};
}

std::vector<Heartbeat::Link> link_to(int rank, Socket socket) {
  std::vector<Heartbeat::Link> links;
  links.push_back({rank, std::move(socket)});
  return links;
}

void send(Socket& socket, const Beat& beat) {
  socket.send_all(&beat, sizeof beat, "the heartbeat", Clock::now() + std::chrono::seconds(30));
}

Beat receive(Socket& socket) {
  std::uint8_t bytes[sizeof(Beat)];
  for (std::size_t got = 0; got < sizeof bytes;) {
    pollfd entry{socket.fd(), POLLIN, 0};
    poll_until(&entry, 1, Clock::now() + std::chrono::seconds(30));
    got += socket.recv_some(bytes + got, sizeof bytes - got, "the heartbeat");
  }
  Beat beat;
  std::memcpy(&beat, bytes, sizeof beat);
  return beat;
}

/// Rank 1 with a heartbeat that rank 0 has, whose `lost` is a promise.
struct Watched {
  explicit Watched(double timeout_s, double work_limit_s = 0) {
    auto [zero, one] = connected();
    peer = std::move(one);
    heartbeat = std::make_unique<Heartbeat>(
        link_to(1, std::move(zero)), timeout_s, work_limit_s, [this](const Status& status) {
          lost.set_value(status);
        });
  }
  /// What ends the job while somebody waits.
  Status await_loss() {
    auto loss = lost.get_future();
    while (loss.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      heartbeat->watch();
    }
    return loss.get();
  }

  Socket peer;
  std::promise<Status> lost;
  std::unique_ptr<Heartbeat> heartbeat;
};

TEST(Heartbeat, AnswersAndIsSilentWhileNobodyWaits) {
  Watched zero(0.01);
  for (int i = 0; i < 3; ++i) {
    send(zero.peer, Beat());
    EXPECT_EQ(receive(zero.peer).kind, Beat::kPong);
  }
  EXPECT_EQ(zero.heartbeat->bytes_sent(), 3 * sizeof(Beat));
}

TEST(Heartbeat, ASilentRankIsAskedBeforeItIsLost) {
  Watched zero(0.3);
  expect_error(
      zero.await_loss(), Code::kPeerLost, {"rank 1 has not answered within 0.3 s", "frozen"});
  EXPECT_EQ(receive(zero.peer).kind, Beat::kPing);
}

TEST(Heartbeat, WhoAnswersIsNotLost) {
  Watched zero(0.3);
  std::thread one([&] {
    for (int i = 0; i < 40; ++i) {
      Beat beat = receive(zero.peer);
      EXPECT_EQ(beat.kind, Beat::kPing);
      beat.kind = Beat::kPong;
      send(zero.peer, beat);
    }
    zero.peer.close();
  });
  EXPECT_EQ(zero.await_loss().code(), Code::kPeerLost);  // only when it has stopped to answer
  one.join();
}

/// It cannot tell who was silent while it did not look.
TEST(Heartbeat, ARankThatWasStoppedItselfAsksAnew) {
  Watched zero(0.2);
  auto loss = zero.lost.get_future();
  for (int stop = 0; stop < 3; ++stop) {
    zero.heartbeat->watch();
    EXPECT_EQ(receive(zero.peer).kind, Beat::kPing);
    EXPECT_EQ(loss.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  }
}

/// Most often its reason has come on the other connection.
TEST(Heartbeat, AnEndOfTheConnectionIsNoLossAtOnce) {
  Watched zero(kNever);
  auto loss = zero.lost.get_future();
  send(zero.peer, Beat());
  EXPECT_EQ(receive(zero.peer).kind, Beat::kPong);
  zero.peer.close();
  zero.heartbeat->watch();
  EXPECT_EQ(loss.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
}

TEST(Heartbeat, ManyPingsAreAnsweredInTheEnd) {
  Watched zero(kNever);
  for (int i = 0; i < 20'000; ++i) {
    send(zero.peer, Beat());
  }
  EXPECT_EQ(receive(zero.peer).kind, Beat::kPong);
}

TEST(Heartbeat, GarbageIsNotAiaccsProtocol) {
  Watched zero(kNever);
  Beat garbage;
  garbage.mark = 0x47474747;
  send(zero.peer, garbage);
  expect_error(zero.lost.get_future().get(), Code::kPeerLost, {"rank 1", "not aiacc's protocol"});
}

/// A rank whose heartbeat is healthy and whose loop thread is not.
TEST(Heartbeat, ALoopThreadThatIsStuckIsFound) {
  Watched zero(4, 0.2);
  Heartbeat one(link_to(0, std::move(zero.peer)), kNever, 0, [](const Status&) {});
  one.work(true);
  expect_error(zero.await_loss(), Code::kTimeout, {"rank 1 answers, but its loop thread"});
}

TEST(Heartbeat, ALoopThreadThatWorksOnIsNotStuck) {
  Watched zero(0.4, 0.2);
  auto loss = zero.lost.get_future();
  Heartbeat one(link_to(0, std::move(zero.peer)), kNever, 0, [](const Status&) {});
  const auto end = Clock::now() + std::chrono::milliseconds(800);
  while (Clock::now() < end) {
    zero.heartbeat->watch();
    one.work(true);
    EXPECT_EQ(loss.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout);
    one.work(false);
  }
}

}  // namespace
}  // namespace aiacc
