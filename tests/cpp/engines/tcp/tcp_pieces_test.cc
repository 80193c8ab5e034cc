// All-reduces of which several are under way on one lane.

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/tcp_engines.h"

namespace aiacc {
namespace {

constexpr Reduction kSum{DataType::kFloat32, ReduceOp::kSum};

class TcpPiecesTest : public testing::TestWithParam<int> {};

TEST_P(TcpPiecesTest, OfEverySize) {
  const int size = GetParam();
  const std::vector<std::size_t> counts = {
      0, 1, 300'001, 0, 0, 0, 0, 17, 2, 100'000, 5, 700'003, 1, 64, 0};
  with_engines(size, [&](int rank, Engine& engine) {
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      check_pieces(engine, lane, rank, size, counts, {DataType::kInt32, ReduceOp::kSum});
      check_pieces(engine, lane, rank, size, counts, {DataType::kFloat16, ReduceOp::kMax, 0.25});
      check_every_operation(engine, lane, rank, size);
    }
  });
}

TEST_P(TcpPiecesTest, OnAllLanesAtATime) {
  const int size = GetParam();
  with_engines(size, [&](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(engine.lanes()));
    for (int lane = 0; lane < engine.lanes(); ++lane) {
      threads.emplace_back([&, lane] {
        try {
          const std::vector<std::size_t> counts(20, static_cast<std::size_t>(10'007 * (lane + 1)));
          check_pieces(engine, lane, rank, size, counts, kSum);
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();
          engine.abort(error.status());
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, TcpPiecesTest, testing::Values(1, 2, 3, 5));

/// Both ranks start all of them in one thread: what a call waited for would never come.
TEST(TcpPiecesOverlapTest, AllAreUnderWayBeforeOneIsWaitedFor) {
  TcpWorld world(2);
  std::vector<std::unique_ptr<TcpEngine>> engines(2);
  run_as_ranks(2, [&](int rank, RankThreads&) {
    engines[static_cast<std::size_t>(rank)] = connect(world, rank);
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
      expect_equal_bits(std::vector<float>(kCount, 2.0f * static_cast<float>(ticket)),
                        pieces[rank][static_cast<std::size_t>(ticket)],
                        "ticket " + std::to_string(ticket));
    }
  });
}

TEST(TcpPiecesFailureTest, AnAbortEndsTheWaitForOneAndAllThatFollow) {
  with_engines(2, [&](int rank, Engine& engine) {
    if (rank == 0) {
      return;
    }
    std::vector<float> data(100'000, 1);
    engine.start_all_reduce(0, 0, data.data(), data.size(), kSum);
    engine.start_all_reduce(0, 1, data.data(), 0, kSum);
    std::atomic<bool> running{false};
    Status seen;
    std::thread blocked([&] {
      running = true;
      try {
        engine.finish_all_reduce(0, 0);
        ADD_FAILURE() << "rank 0 never came";
      } catch (const Error& error) {
        seen = error.status();
      }
    });
    while (!running) {
      std::this_thread::yield();
    }
    engine.abort(Status(Code::kShutdown, "stop now"));
    blocked.join();
    EXPECT_EQ("stop now", seen.message());
    EXPECT_THROW(engine.finish_all_reduce(0, 1), Error);
    EXPECT_THROW(engine.start_all_reduce(0, 2, data.data(), 1, kSum), Error);
    EXPECT_THROW(engine.finish_all_reduce(1, 0), Error);
  });
}

/// The second of three is another one: the first is right, and nothing comes after.
TEST(TcpPiecesFailureTest, RanksThatDisagreeGetAnErrorForTheOneInQuestion) {
  std::atomic<int> first_was_right{0};
  try {
    with_engines(2, [&](int rank, Engine& engine) {
      std::array<std::vector<float>, 3> data;
      for (std::size_t ticket = 0; ticket < data.size(); ++ticket) {
        data[ticket].assign(ticket == 1 && rank == 1 ? 32 : 64, 1.0f);
      }
      const auto start = [&](int ticket) {
        std::vector<float>& piece = data[static_cast<std::size_t>(ticket)];
        engine.start_all_reduce(0, ticket, piece.data(), piece.size(), kSum);
      };
      start(0);
      engine.finish_all_reduce(0, 0);
      first_was_right += data[0] == std::vector<float>(64, 2.0f) ? 1 : 0;
      start(1);
      start(2);
      engine.finish_all_reduce(0, 1);
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kInternal, error.code());
    EXPECT_NE(std::string::npos, std::string(error.what()).find("disagree")) << error.what();
  }
  EXPECT_EQ(2, first_was_right);
}

TEST(TcpPiecesFailureTest, ALostRankIsNamed) {
  TcpWorld world(2);
  std::vector<std::unique_ptr<TcpEngine>> engines(2);
  run_as_ranks(2, [&](int rank, RankThreads&) {
    engines[static_cast<std::size_t>(rank)] = connect(world, rank);
  });
  engines[1].reset();
  std::vector<float> data(1 << 20, 1);
  try {
    for (int ticket = 0; ticket < 2; ++ticket) {
      engines[0]->start_all_reduce(0, ticket, data.data(), data.size(), kSum);
    }
    engines[0]->finish_all_reduce(0, 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kPeerLost, error.code());
    EXPECT_NE(std::string::npos, std::string(error.what()).find("rank 1")) << error.what();
  }
  EXPECT_THROW(engines[0]->finish_all_reduce(0, 1), Error);
}

}  // namespace
}  // namespace aiacc
