// Who is busy and which link is dead.

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/tcp/exchange.h"
#include "csrc/engines/tcp/link_judge.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/interruptions.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

constexpr double kLimit = 4;

/// Bytes are under way, and repeated in vain, except for what `change` does.
template <class Change>
TcpLink stuck(Change change) {
  TcpLink link;
  link.unacknowledged = 3;
  link.acknowledged = 1000;
  link.tells_window = true;
  link.window = 65536;
  link.repeats = LinkJudge::kRepeats;
  link.sent_s = 1;
  change(link);
  return link;
}
TcpLink stuck() {
  return stuck([](TcpLink&) {});
}

/// What a judge sees, so long after what it saw before, and what it says.
struct Look {
  double after_s;
  TcpLink link;
  bool dead;
};

TEST(LinkJudgeTest, TellsDeadLinksFromBusyAndIdleOnes) {
  const TcpLink silent = stuck([](TcpLink& link) { link.silent_s = kLimit; });
  TcpLink idle;
  idle.acknowledged = 1000;
  idle.tells_window = true;
  idle.window = 65536;
  idle.silent_s = idle.sent_s = 1000;
  const auto full = [](double silent_s, int probes) {
    return stuck([&](TcpLink& link) {
      link.window = 0;
      link.silent_s = silent_s;
      link.probes = static_cast<decltype(link.probes)>(probes);
    });
  };
  const TcpLink few_repeats = stuck([](TcpLink& link) {
    link.repeats = LinkJudge::kRepeats - 1;
    link.silent_s = 2 * kLimit;
  });
  TcpLink few_probes;
  few_probes.probes = LinkJudge::kProbes - 1;
  few_probes.silent_s = 2 * kLimit;
  const auto untold = [](double sent_s) {
    return stuck([&](TcpLink& link) {
      link.tells_window = false;
      link.window = 0;
      link.silent_s = 2 * kLimit;
      link.sent_s = sent_s;
    });
  };
  std::vector<Look> reads_nothing(100, {kLimit / 8, full(60, 1), false});  // between two questions
  std::vector<Look> slow;
  for (unsigned look = 1; look <= 100; ++look) {
    slow.push_back({kLimit * 0.9, stuck([&](TcpLink& link) { link.acknowledged += look; }), false});
  }
  const std::vector<std::pair<const char*, std::vector<Look>>> links = {
      {"bytes stay unacknowledged though there is room",
       {{0, stuck(), false}, {kLimit * 0.9, stuck(), false}, {kLimit * 0.2, stuck(), true}}},
      {"what the kernel has seen before counts", {{0, silent, true}}},
      {"a rank reads nothing", reads_nothing},
      {"a host answers no question about its window",
       {{0, full(kLimit, LinkJudge::kProbes), true}}},
      {"a slow link", slow},
      // It goes on with bytes of which the first are lost: the time before does not count.
      {"an idle link", {{0, idle, false}, {1000, idle, false}, {1, stuck(), false}}},
      {"a few losses", {{0, few_repeats, false}, {2 * kLimit, few_repeats, false}}},
      {"a few questions", {{0, few_probes, false}}},
      // Where the window is not told, an answer to what was sent last means that it is full; what
      // has just been repeated has no answer yet.
      {"no window is told",
       {{0, untold(2 * kLimit), false}, {0, untold(0), false}, {0, untold(kLimit / 2), true}}},
  };
  for (const auto& [name, looks] : links) {
    LinkJudge judge(kLimit);
    Clock::time_point now = Clock::now();
    for (const Look& look : looks) {
      now +=
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(look.after_s));
      ASSERT_EQ(look.dead, judge.is_dead(look.link, now)) << name;
    }
  }
}

std::vector<Socket> ring_sockets(TcpWorld& world, int rank) {
  return world.connector(rank).establish({{1 - rank, ChannelKind::kRing, 0, rank == 0}});
}

TEST(TcpLink, IsDeadWhenNothingArrivesThereWhateverSignalsCome) {
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
  const Interruptions signals;
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
