// TcpEngine::split: engines among some of the ranks.

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/tcp_engines.h"

namespace aiacc {
namespace {

/// Runs `body(engine, index)` with the engine among `members`, if `rank` is one of them.
template <class Body>
void with_part(
    Engine& engine, int rank, const std::vector<int>& members, std::uint32_t split_id, Body body) {
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found != members.end()) {
    const std::unique_ptr<Engine> part = engine.split(members, split_id);
    try {
      body(*part, static_cast<int>(found - members.begin()));
    } catch (...) {
      part->abort(current_exception_status());
      throw;
    }
  }
}

class TcpSplitTest : public testing::TestWithParam<int> {};

TEST_P(TcpSplitTest, EverySubsetWorksOnEveryLane) {
  const int size = GetParam();
  with_engines(size, [&](int rank, Engine& engine) {
    for (std::uint32_t mask = 1; mask < (1u << size); ++mask) {
      std::vector<int> members;
      for (int member = 0; member < size; ++member) {
        if ((mask >> member & 1u) != 0) {
          members.push_back(member);
        }
      }
      with_part(engine, rank, members, mask, [&](Engine& part, int index) {
        EXPECT_EQ(engine.lanes(), part.lanes());
        EXPECT_STREQ(engine.name(), part.name());
        for (int lane = 0; lane <= part.express_lane(); ++lane) {
          check_every_operation(part, lane, index, static_cast<int>(members.size()));
        }
      });
    }
    check_every_operation(engine, 0, rank, size);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, TcpSplitTest, testing::Values(1, 2, 3, 4));

/// Rank 1 is in both halves and uses them from two threads, which also make them.
TEST(TcpSplitThreadsTest, OverlappingPartsWorkAtTheSameTime) {
  const std::vector<std::vector<int>> parts = {{0, 1}, {1, 2}};
  with_engines(3, [&](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    for (std::uint32_t split_id = 0; split_id < 2; ++split_id) {
      threads.emplace_back([&, split_id] {
        try {
          with_part(engine, rank, parts[split_id], split_id, [&](Engine& part, int index) {
            for (int i = 0; i < 10; ++i) {
              check_every_operation(part, i % (part.lanes() + 1), index, 2);
            }
          });
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();
          engine.abort(error.status());
        }
      });
    }
    check_every_operation(engine, 0, rank, 3);
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

TEST(TcpSplitAbortTest, ReachesOneEngineAndNoOther) {
  with_engines(2, [&](int rank, Engine& engine) {
    const std::unique_ptr<Engine> doomed = engine.split({0, 1}, 1);
    const std::unique_ptr<Engine> spared = engine.split({0, 1}, 2);
    Status seen;
    std::atomic<bool> running{false};
    std::thread blocked([&] {
      float value = 1;
      running = true;
      try {
        while (rank != 0) {  // which never comes
          doomed->all_reduce(0, &value, &value, 1, {DataType::kFloat32, ReduceOp::kSum});
        }
      } catch (const Error& error) {
        seen = error.status();
      }
    });
    while (!running) {
      std::this_thread::yield();
    }
    doomed->abort(Status(Code::kShutdown, "stop now"));
    blocked.join();
    EXPECT_EQ(rank == 0 ? "" : "stop now", seen.message());
    float value = 1;
    EXPECT_THROW(doomed->broadcast(0, &value, sizeof value, 0), Error);
    check_every_operation(*spared, 0, rank, 2);
    check_every_operation(engine, 0, rank, 2);
  });
}

/// The other ranks never come; the engine that is split is aborted, by another thread.
TEST(TcpSplitAbortTest, OfTheWholeEndsAWaitingSplit) {
  with_engines(3, [&](int rank, Engine& engine) {
    if (rank != 1) {
      return;
    }
    std::atomic<bool> running{false};
    Status seen;
    std::thread waiting([&] {
      running = true;
      try {
        engine.split({0, 1, 2}, 4);
      } catch (const Error& error) {
        seen = error.status();
      }
    });
    while (!running) {
      std::this_thread::yield();
    }
    engine.abort(Status(Code::kPeerLost, "rank 0 is gone"));
    waiting.join();
    EXPECT_EQ("rank 0 is gone", seen.message());
  });
}

/// A rank that is not the first of the job is called by its number in the job.
TEST(TcpSplitLostPeerTest, IsNamedAsInTheJob) {
  TcpWorld world(3);
  run_as_ranks(3, [&](int rank, RankThreads& rank_threads) {
    const std::unique_ptr<TcpEngine> engine = connect(world, rank);
    if (rank == 0) {
      return;
    }
    const auto part = engine->split({1, 2}, 0);
    const auto guard = rank_threads.on_failure([&](const Status& status) { part->abort(status); });
    if (rank == 2) {
      return;
    }
    std::vector<float> data(1000, 1.0f);
    try {
      part->all_reduce(
          0, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(Code::kPeerLost, error.code());
      EXPECT_NE(std::string::npos, std::string(error.what()).find("rank 2")) << error.what();
    }
  });
}

TEST(TcpSplitTimeoutTest, NamesTheMissingRankAndLeavesTheEngineUsable) {
  TcpWorld world(3, 2);
  std::vector<std::unique_ptr<TcpEngine>> engines(3);
  run_as_ranks(3, [&](int rank, RankThreads& rank_threads) {
    auto& engine = engines[static_cast<std::size_t>(rank)];
    engine = connect(world, rank);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    if (rank == 2) {
      try {
        engine->split({1, 2}, 9);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(Code::kTimeout, error.code());
        EXPECT_NE(std::string::npos, std::string(error.what()).find("rank(s) 1")) << error.what();
      }
    }
    check_all_reduce(*engine, 0, rank, 3, 100, DataType::kFloat32, ReduceOp::kSum);
  });
}

}  // namespace
}  // namespace aiacc
