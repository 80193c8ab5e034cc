// What is special about TcpEngine: connections that are made late, ranks that are lost or disagree,
// pieces. What all engines promise is in engine_suite.cc.

#include "csrc/engines/tcp/tcp_engine.h"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/process.h"

namespace aiacc {
namespace {

void exchange_floats(Engine& engine, int lane, int size, std::size_t count) {
  const std::vector<float> send(count * static_cast<std::size_t>(size), 1.0F);
  std::vector<float> recv(send.size());
  const std::vector<std::size_t> bytes(static_cast<std::size_t>(size), count * sizeof(float));
  engine.all_to_all(lane, send.data(), recv.data(), bytes, bytes);
}

void reduce_floats(Engine& engine, int lane, std::size_t count) {
  std::vector<float> data(count, 1.0F);
  engine.all_reduce(lane, data.data(), data.data(), count, kSum);
}

/// What the first all-to-all waits for when a rank is late for it, by longer than ranks wait for
/// each other to come up.
TEST(FirstAllToAllTest, ARankThatIsBusyIsWaitedFor) {
  constexpr double kConnectTimeout = 1;
  TcpWorld world(3, kConnectTimeout);
  with_engines(world, tcp_ranks(3), [](int rank, Engine& engine) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::duration<double>(2 * kConnectTimeout));
    }
    check_all_to_all(engine, 0, rank, 3, 4);
  });
}

/// Others can see that it waits, and an abort ends it.
TEST(FirstAllToAllTest, WaitsForARankThatNeverComesAsOneCanSee) {
  with_engines(tcp_ranks(2), [&](int rank, Engine& engine) {
    if (rank == 0) {
      return;
    }
    BlockedCall blocked([&] { exchange_floats(engine, 0, 2, 1); });
    yield_until([&] { return engine.waits(0).seconds > 0; });
    EXPECT_EQ(engine.waits(0).for_rank, 0);
    engine.abort({Code::kShutdown, "stop now"});
    expect_error(blocked.join(), Code::kShutdown);
  });
}

TEST(FirstAllToAllTest, ARankThatHasDiedEndsIt) {
  TcpWorld world(3, 600);
  std::promise<void> up;
  const std::shared_future<void> rank_1_is_up = up.get_future();
  // All live on until both survivors have noticed: the first to end would be a lost rank, too.
  with_engines(world, tcp_ranks(3), [&](int rank, Engine& engine) {
    if (rank == 1) {
      world.hang_up(1);
      up.set_value();
      return;
    }
    // While it comes up it would welcome what the all-to-all connects, and would keep that open.
    rank_1_is_up.wait();
    expect_error(
        status_of([&] { exchange_floats(engine, 0, 3, 1); }), Code::kPeerLost, {"rank 1 has died"});
  });
}

/// Rank 0 never comes: its partners wait for connections, or for bytes.
TEST(TcpExchangeTest, AnAbortReachesRanksThatConnectAndRanksThatExchange) {
  constexpr int kSize = 3;
  for (const bool connected : {false, true}) {
    with_engines(tcp_ranks(kSize), [&](int rank, Engine& engine) {
      if (connected) {
        exchange_floats(engine, 0, kSize, 10);
      }
      BlockedCall partner([&] {
        if (rank != 0) {
          exchange_floats(engine, 0, kSize, 1 << 20);
        }
      });
      engine.abort(Status(Code::kShutdown, "stop now"));
      EXPECT_EQ(rank == 0 ? "" : "stop now", partner.join().message());
      EXPECT_THROW(exchange_floats(engine, 0, kSize, 1), Error);
    });
  }
}

/// One connection between every two ranks for each lane that was used; each end is a descriptor of
/// this process.
TEST(TcpExchangeTest, EveryLaneHasItsOwnConnectionsFromItsFirstUseOn) {
  constexpr int kSize = 3;
  with_engines(tcp_ranks(kSize), [&](int rank, Engine& engine) {
    const auto meet = [&] { reduce_floats(engine, 0, 1); };
    meet();
    // One rank counts, for who does has the folder open.
    const std::size_t before = rank == 0 ? process_descriptors() : 0;
    meet();
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      exchange_floats(engine, lane, kSize, 10);
      exchange_floats(engine, lane, kSize, 10);
      meet();
      if (rank == 0) {
        const auto lanes = static_cast<std::size_t>(lane) + 1;
        EXPECT_EQ(process_descriptors() - before, lanes * kSize * (kSize - 1U));
      }
      meet();
    }
    meet();
  });
}

struct Moment {
  std::string name;
  int size;
  std::function<void(Engine&)> call;
};

class LostPeerTest : public testing::TestWithParam<Moment> {};

/// The last rank leaves; the ones connected to it must say so, and every later call fails alike.
TEST_P(LostPeerTest, IsNamed) {
  const auto& [name, size, call] = GetParam();
  const int leaver = size - 1;
  TcpWorld world(size);
  run_as_ranks(size, [&, size = size, &call = call](int rank, RankThreads& rank_threads) {
    const std::unique_ptr<Engine> engine = connect(world, tcp_ranks(world.size()), rank);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    call(*engine);
    if (rank == leaver) {
      return;
    }
    const Status seen = first_error_of([&] { call(*engine); });
    const bool next_to_it = rank == 0;
    expect_error(seen,
                 Code::kPeerLost,
                 {next_to_it ? "rank " + std::to_string(leaver) : std::string("rank ")});
    EXPECT_EQ(seen.message(), status_of([&] { exchange_floats(*engine, 0, size, 1); }).message());
    EXPECT_THROW(engine->finish_all_reduce(0, 1), Error);
  });
}

void reduce_pieces(Engine& engine) {
  std::vector<float> pieces[2];
  for (int ticket = 0; ticket < 2; ++ticket) {
    pieces[ticket].assign(1 << 19, 1);
    engine.start_all_reduce(0, ticket, pieces[ticket].data(), pieces[ticket].size(), kSum);
  }
  engine.finish_all_reduce(0, 0);
  engine.finish_all_reduce(0, 1);
}

std::vector<Moment> moments() {
  std::vector<Moment> all;
  for (const int size : {2, 3}) {
    const std::string ranks = "Of" + std::to_string(size);
    all.push_back(
        {"OnALane" + ranks, size, [](Engine& engine) { reduce_floats(engine, 0, 1 << 20); }});
    all.push_back({"OnTheExpressLane" + ranks, size, [](Engine& engine) {
                     reduce_floats(engine, engine.express_lane(), 1 << 20);
                   }});
    all.push_back({"InPieces" + ranks, size, reduce_pieces});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Moments, LostPeerTest, testing::ValuesIn(moments()), [](const auto& test) {
  return test.param.name;
});

/// A rank that is not the first of the job is called by its number in the job.
TEST(TcpSplitTest, ALostRankIsNamedAsInTheJob) {
  with_engines(tcp_ranks(3), [](int rank, Engine& engine) {
    with_part(engine, rank, {1, 2}, 0, [&](Engine& part, int) {
      if (rank == 1) {
        expect_error(status_of([&] { reduce_floats(part, 0, 1000); }), Code::kPeerLost, {"rank 2"});
      }
    });
  });
}

TEST(TcpSplitTest, ATimeoutNamesTheMissingRankAndLeavesTheEngineUsable) {
  TcpWorld world(3, 2);
  with_engines(world, tcp_ranks(3), [](int rank, Engine& engine) {
    if (rank == 2) {
      expect_error(status_of([&] { engine.split({1, 2}, 9); }), Code::kTimeout, {"rank(s) 1"});
    }
    check_all_reduce(engine, 0, rank, 3, 100, DataType::kFloat32, ReduceOp::kSum);
  });
}

/// Each is called by both ranks.
TEST(TcpOrderTest, RanksThatDisagreeGetAnErrorInsteadOfGarbage) {
  std::atomic<int> right{0};
  const std::function<void(int, Engine&, int)> disagreements[] = {
      [](int rank, Engine& engine, int lane) { reduce_floats(engine, lane, rank == 0 ? 64 : 32); },
      [](int rank, Engine& engine, int lane) {
        const std::vector<float> send(100, 1.0F);
        std::vector<float> recv(100);
        const Reduction reduction{DataType::kFloat32, rank == 0 ? ReduceOp::kSum : ReduceOp::kMax};
        engine.reduce_scatter(lane, send.data(), recv.data(), {50, 50}, reduction);
      },
      [](int rank, Engine& engine, int lane) {
        exchange_floats(engine, lane, 2, rank == 0 ? 100 : 99);
      },
      // The second of three pieces is another one: the first is right, and nothing comes after.
      [&](int rank, Engine& engine, int lane) {
        std::array<std::vector<float>, 3> data;
        const auto start = [&](int ticket) {
          std::vector<float>& piece = data[static_cast<std::size_t>(ticket)];
          piece.assign(ticket == 1 && rank == 1 ? 32 : 64, 1.0F);
          engine.start_all_reduce(lane, ticket, piece.data(), piece.size(), kSum);
        };
        start(0);
        engine.finish_all_reduce(lane, 0);
        right += data[0] == std::vector<float>(64, 2.0F) ? 1 : 0;
        start(1);
        start(2);
        engine.finish_all_reduce(lane, 1);
      }};
  for (const auto& body : disagreements) {
    for (const bool express : {false, true}) {
      const Status seen = status_of([&] {
        with_engines(tcp_ranks(2), [&](int rank, Engine& engine) {
          body(rank, engine, express ? engine.express_lane() : 0);
        });
      });
      expect_error(seen, Code::kInternal, {"disagree"});
    }
  }
  EXPECT_EQ(4, right);
}

/// Both ranks start all of them in one thread: what a call waited for would never come.
TEST(TcpPiecesTest, AllAreUnderWayBeforeOneIsWaitedFor) {
  TcpWorld world(2);
  std::array<std::unique_ptr<Engine>, 2> engines;
  run_as_ranks(2, [&](int rank) {
    engines[static_cast<std::size_t>(rank)] = connect(world, tcp_ranks(2), rank);
  });
  constexpr std::size_t kCount = 1'000'000;
  std::array<std::array<std::vector<float>, Engine::kTickets>, 2> pieces;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (int ticket = 0; ticket < Engine::kTickets; ++ticket) {
      std::vector<float>& piece = pieces[rank][static_cast<std::size_t>(ticket)];
      piece.assign(kCount, static_cast<float>(ticket));
      engines[rank]->start_all_reduce(0, ticket, piece.data(), kCount, kSum);
    }
  }
  run_as_ranks(2, [&](int number, RankThreads&) {
    const auto rank = static_cast<std::size_t>(number);
    for (int ticket = 0; ticket < Engine::kTickets; ++ticket) {
      engines[rank]->finish_all_reduce(0, ticket);
      expect_equal_bits(std::vector<float>(kCount, 2.0F * static_cast<float>(ticket)),
                        pieces[rank][static_cast<std::size_t>(ticket)],
                        "ticket " + std::to_string(ticket));
    }
  });
}

}  // namespace
}  // namespace aiacc
