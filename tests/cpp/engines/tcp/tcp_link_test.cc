// Who is busy and which link is dead.

#include <linux/filter.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/tcp/exchange.h"
#include "csrc/engines/tcp/link_judge.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

constexpr double kLimit = 4;

/// Shows a judge states of a link, each a while after the one before.
class LinkJudgeTest : public testing::Test {
 protected:
  bool dead_after(double seconds, const TcpLink& link) {
    now_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    return judge_.is_dead(link, now_);
  }

  /// Bytes are under way, and repeated in vain.
  static TcpLink stuck() {
    TcpLink link;
    link.unacknowledged = 3;
    link.acknowledged = 1000;
    link.tells_window = true;
    link.window = 65536;
    link.repeats = LinkJudge::kRepeats;
    link.sent_s = 1;
    return link;
  }

  LinkJudge judge_{kLimit};
  Clock::time_point now_ = Clock::now();
};

TEST_F(LinkJudgeTest, BytesThatStayUnacknowledgedThoughThereIsRoom) {
  EXPECT_FALSE(dead_after(0, stuck()));
  EXPECT_FALSE(dead_after(kLimit * 0.9, stuck()));
  EXPECT_TRUE(dead_after(kLimit * 0.2, stuck()));
}

TEST_F(LinkJudgeTest, WhatTheKernelHasSeenBeforeCounts) {
  TcpLink link = stuck();
  link.silent_s = kLimit;
  EXPECT_TRUE(dead_after(0, link));
}

TEST_F(LinkJudgeTest, ARankThatReadsNothingIsNotDead) {
  TcpLink full = stuck();
  full.window = 0;
  full.silent_s = 60;  // between two questions about the window
  full.probes = 1;
  for (int look = 0; look < 100; ++look) {
    ASSERT_FALSE(dead_after(kLimit / 8, full));
  }
}

TEST_F(LinkJudgeTest, AHostThatAnswersNoQuestionAboutItsWindowIsDead) {
  TcpLink full = stuck();
  full.window = 0;
  full.silent_s = kLimit;
  full.probes = LinkJudge::kProbes;
  EXPECT_TRUE(dead_after(0, full));
}

TEST_F(LinkJudgeTest, ASlowLinkIsNotDead) {
  TcpLink link = stuck();
  for (int look = 0; look < 100; ++look) {
    link.acknowledged += 1;
    ASSERT_FALSE(dead_after(kLimit * 0.9, link));
  }
}

TEST_F(LinkJudgeTest, AnIdleLinkIsNotDead) {
  TcpLink idle;
  idle.acknowledged = 1000;
  idle.tells_window = true;
  idle.window = 65536;
  idle.silent_s = idle.sent_s = 1000;
  EXPECT_FALSE(dead_after(0, idle));
  EXPECT_FALSE(dead_after(1000, idle));
  // It goes on with bytes of which the first are lost: the time before does not count.
  TcpLink link = stuck();
  EXPECT_FALSE(dead_after(1, link));
}

TEST_F(LinkJudgeTest, AFewLossesAreNoDeadLink) {
  TcpLink link = stuck();
  link.repeats = LinkJudge::kRepeats - 1;
  link.silent_s = 2 * kLimit;
  EXPECT_FALSE(dead_after(0, link));
  EXPECT_FALSE(dead_after(2 * kLimit, link));
  TcpLink idle;
  idle.probes = LinkJudge::kProbes - 1;
  idle.silent_s = 2 * kLimit;
  EXPECT_FALSE(dead_after(0, idle));
}

TEST_F(LinkJudgeTest, AKernelThatDoesNotTellTheWindowIsAskedForAnswers) {
  TcpLink link = stuck();
  link.tells_window = false;
  link.window = 0;
  link.silent_s = link.sent_s = 2 * kLimit;  // it answered what was sent last: it is full
  EXPECT_FALSE(dead_after(0, link));
  link.sent_s = 0;  // has just been repeated
  EXPECT_FALSE(dead_after(0, link));
  link.sent_s = kLimit / 2;
  EXPECT_TRUE(dead_after(0, link));
}

std::vector<Socket> ring_sockets(TcpWorld& world, int rank) {
  return world.connector(rank).establish({{1 - rank, ChannelKind::kRing, 0, rank == 0}});
}

/// From now on, everything that comes is lost.
void cut(const Socket& socket) {
  sock_filter drop[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{1, drop};
  ASSERT_EQ(setsockopt(socket.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

TEST(TcpLink, IsDeadWhenNothingArrivesThere) {
  TcpWorld world(2);
  std::vector<Socket> ends(2);
  run_as_ranks(2, [&](int rank) {
    ends[static_cast<std::size_t>(rank)] = std::move(ring_sockets(world, rank)[0]);
  });
  cut(ends[1]);
  Channel channel(std::move(ends[0]), 1, "lane 0", 0.3);
  const Cancellation none;
  Spin spin(std::chrono::nanoseconds(0));
  OpHeader header;
  OpHeader theirs;
  const Status status = status_of([&] {
    exchange(
        channel, Message::sent(header), channel, Message::received(theirs, header), spin, none);
  });
  expect_error(status, Code::kPeerLost, {"lost rank 1 on lane 0: nothing has arrived there"});
}

/// Rank 0 begins with the sum of all ranks; the others are in one of their own for much longer than
/// the limit, and read nothing of what rank 0 sends.
TEST(TcpLink, IsNotDeadWhileTheRankAtItsEndIsBusyElsewhere) {
  constexpr double kShortLimit = 0.3;
  constexpr std::size_t kCount = std::size_t{8} << 20;
  TcpWorld world(3);
  std::vector<std::unique_ptr<TcpEngine>> engines(3);
  run_as_ranks(3, [&](int rank, RankThreads& rank_threads) {
    EngineContext context;
    context.rank = rank;
    context.size = 3;
    context.peer_timeout_s = kShortLimit;
    context.connector = &world.connector(rank);
    engines[static_cast<std::size_t>(rank)] = std::make_unique<TcpEngine>(context);
    TcpEngine& engine = *engines[static_cast<std::size_t>(rank)];
    const auto guard = rank_threads.on_failure([&](const Status& status) { engine.abort(status); });
    std::vector<float> data(kCount, 1);
    float ready = 1;
    engine.all_reduce(
        engine.express_lane(), &ready, &ready, 1, {DataType::kFloat32, ReduceOp::kSum});
    while (rank != 0 && engines[0]->send_busy_s(0) < 5 * kShortLimit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the kernel tells no one
    }
    engine.all_reduce(0, data.data(), data.data(), kCount, {DataType::kFloat32, ReduceOp::kSum});
    EXPECT_EQ(data.front(), 3);
    EXPECT_EQ(data.back(), 3);
  });
}

}  // namespace
}  // namespace aiacc
