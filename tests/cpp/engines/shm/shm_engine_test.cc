#include "csrc/engines/shm/shm_engine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/reduce.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/shm_engines.h"

namespace aiacc {
namespace {

class ShmEngineTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

TEST_P(ShmEngineTest, EveryOperationOnEveryLane) {
  with_shm_engines(size(), [&](int rank, Engine& engine) {
    EXPECT_STREQ("shm", engine.name());
    EXPECT_EQ(kShmLanes, engine.lanes());
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      check_every_operation(engine, lane, rank, size());
    }
  });
}

TEST_P(ShmEngineTest, AllReduceEveryTypeAndOp) {
  with_shm_engines(size(), [&](int rank, Engine& engine) {
    for (const DataType dtype : all_dtypes()) {
      for (const ReduceOp op : engine_ops()) {
        for (const int lane : {0, engine.express_lane()}) {
          check_all_reduce(engine, lane, rank, size(), 40009, dtype, op);
        }
      }
    }
  });
}

TEST_P(ShmEngineTest, OperationsOnNothingAndOnOneElement) {
  const auto ranks = static_cast<std::size_t>(size());
  with_shm_engines(size(), [&](int rank, Engine& engine) {
    for (const std::size_t count : {0, 1}) {
      for (const int lane : {1, engine.express_lane()}) {
        check_all_reduce(engine, lane, rank, size(), count, DataType::kFloat32, ReduceOp::kSum);
        for (int root = 0; root < size(); ++root) {
          check_broadcast(engine, lane, rank, root, count);
        }
        check_all_gather(engine, lane, rank, size(), count);
        check_all_to_all(engine, lane, rank, size(), count);
        const std::vector<std::size_t> counts(ranks, count);
        check_reduce_scatter(engine, lane, rank, counts, DataType::kInt64, ReduceOp::kMax);
      }
    }
  });
}

TEST_P(ShmEngineTest, LargeAndUnevenOnes) {
  with_shm_engines(
      size(),
      [&](int rank, Engine& engine) {
        check_all_reduce(engine, 0, rank, size(), 300007, DataType::kFloat32, ReduceOp::kSum);
        check_broadcast(engine, 1, rank, 0, 1000003);
        check_all_gather(engine, 0, rank, size(), 200003);
        check_all_to_all(engine, 1, rank, size(), 100003);
        check_reduce_scatter(
            engine, 0, rank, uneven_counts(size(), 50021), DataType::kUInt16, ReduceOp::kMin);
      },
      std::size_t{8} << 10);
}

TEST_P(ShmEngineTest, LanesWorkAtTheSameTime) {
  with_shm_engines(size(), [&](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      threads.emplace_back([&, lane] {
        try {
          for (int i = 0; i < 20; ++i) {
            check_every_operation(engine, lane, rank, size());
          }
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

INSTANTIATE_TEST_SUITE_P(Sizes, ShmEngineTest, testing::Values(1, 2, 3, 4, 7));

/// The other hosts of a job, where each of them has the same numbers.
class TwinHosts : public CrossHostReduce {
 public:
  explicit TwinHosts(int more) : more_(more) {}
  void start(int ticket, void* data, std::size_t count, DataType dtype, ReduceOp op) override {
    tickets_[ticket] = {data, count, dtype, op};
  }
  void finish(int ticket) override {
    const Piece& piece = tickets_[ticket];
    const std::vector<std::byte> copy(
        static_cast<std::byte*>(piece.data),
        static_cast<std::byte*>(piece.data) + piece.count * size_of(piece.dtype));
    for (int host = 0; host < more_; ++host) {
      reduce(piece.data, copy.data(), piece.count, piece.dtype, piece.op);
    }
    total_ += piece.count;
  }
  /// Elements that were combined.
  std::size_t total() const { return total_; }

 private:
  struct Piece {
    void* data = nullptr;
    std::size_t count = 0;
    DataType dtype = DataType::kUInt8;
    ReduceOp op = ReduceOp::kSum;
  };
  Piece tickets_[ShmChannel::kSlots];
  const int more_;
  std::size_t total_ = 0;
};

class AcrossHostsTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(AcrossHostsTest, OwnersCombineEveryElementOnce) {
  const auto [size, owners] = GetParam();
  for (const std::size_t count : {1, 100, 5000, 100001}) {
    std::vector<std::size_t> combined(static_cast<std::size_t>(size));
    with_shm_engines(
        size,
        [&, size = size, owners = owners](int rank, ShmEngine& engine) {
          TwinHosts hosts(2);
          for (const bool in_place : {false, true}) {
            const auto input = rank_numbers<std::int64_t>(count, rank);
            std::vector<std::int64_t> out = input;
            engine.all_reduce_across(1,
                                     in_place ? out.data() : input.data(),
                                     out.data(),
                                     count,
                                     {DataType::kInt64, ReduceOp::kSum, 5.0},
                                     hosts,
                                     owners);
            auto expected = reduced_numbers<std::int64_t>(count, size, ReduceOp::kSum);
            for (std::int64_t& value : expected) {
              value *= 3 * 5;
            }
            expect_equal_bits(expected, out, "count " + std::to_string(count));
          }
          combined[static_cast<std::size_t>(rank)] = hosts.total();
          check_all_reduce(engine, 1, rank, size, count, DataType::kInt32, ReduceOp::kSum);
        },
        std::size_t{64} << 10);
    std::size_t total = 0;
    for (int rank = 0; rank < size; ++rank) {
      const std::size_t part = combined[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(rank < owners || part == 0) << rank;
      total += part;
    }
    EXPECT_EQ(2 * count, total);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         AcrossHostsTest,
                         testing::Values(std::tuple(1, 1),
                                         std::tuple(2, 1),
                                         std::tuple(2, 2),
                                         std::tuple(3, 2),
                                         std::tuple(5, 1),
                                         std::tuple(5, 3)));

/// Runs `body(part, index)` with the engine among `members`, if `rank` is one of them.
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

TEST(ShmSplitTest, EverySubsetWorksOnEveryLane) {
  constexpr int kSize = 4;
  with_shm_engines(kSize, [&](int rank, Engine& engine) {
    for (std::uint32_t mask = 1; mask < (1u << kSize); ++mask) {
      std::vector<int> members;
      for (int member = 0; member < kSize; ++member) {
        if ((mask >> member & 1u) != 0) {
          members.push_back(member);
        }
      }
      with_part(engine, rank, members, mask, [&](Engine& part, int index) {
        EXPECT_EQ(engine.lanes(), part.lanes());
        for (int lane = 0; lane <= part.express_lane(); ++lane) {
          check_every_operation(part, lane, index, static_cast<int>(members.size()));
        }
      });
    }
    check_every_operation(engine, 0, rank, kSize);
  });
}

/// Rank 1 is in both halves and uses them from two threads, which also make them.
TEST(ShmSplitTest, OverlappingPartsWorkAtTheSameTime) {
  const std::vector<std::vector<int>> parts = {{0, 1}, {1, 2}};
  with_shm_engines(3, [&](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    threads.reserve(2);
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

/// The other ranks never come; the engine that is split is aborted, by another thread.
TEST(ShmSplitTest, AbortOfTheWholeEndsAWaitingSplit) {
  with_shm_engines(3, [&](int rank, Engine& engine) {
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

TEST(ShmAbortTest, ReachesEveryBlockedLaneOfThisRankAndEveryLaterCall) {
  const Status reason(Code::kShutdown, "stop now");
  with_shm_engines(2, [&](int rank, Engine& engine) {
    if (rank == 0) {
      return;
    }
    std::vector<Status> seen(kShmLanes + 1);
    std::vector<std::thread> threads;
    for (int lane = 0; lane <= kShmLanes; ++lane) {
      threads.emplace_back([&, lane] {
        std::vector<float> data(1 << 18, 1.0f);
        try {
          engine.all_reduce(
              lane, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum});
        } catch (const Error& error) {
          seen[static_cast<std::size_t>(lane)] = error.status();
        }
      });
    }
    for (int lane = 0; lane <= kShmLanes; ++lane) {
      while (engine.waits(lane).seconds == 0) {
        std::this_thread::yield();
      }
      EXPECT_EQ(0, engine.waits(lane).for_rank);
    }
    engine.abort(reason);
    engine.abort(Status(Code::kInternal, "too late"));
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const Status& status : seen) {
      EXPECT_EQ(Code::kShutdown, status.code());
      EXPECT_EQ("stop now", status.message());
    }
    float value = 0;
    EXPECT_THROW(engine.broadcast(0, &value, sizeof value, 0), Error);
  });
}

/// A rank that is not the first of the job is called by its number in the job.
TEST(ShmWaitTest, NamesTheRankAsInTheJob) {
  with_shm_engines(3, [&](int rank, Engine& engine) {
    if (rank == 0) {
      return;
    }
    const auto part = engine.split({1, 2}, 0);
    if (rank == 2) {
      return;
    }
    std::thread blocked([&] {
      float value = 1;
      EXPECT_THROW(part->all_reduce(0, &value, &value, 1, {DataType::kFloat32, ReduceOp::kSum}),
                   Error);
    });
    while (part->waits(0).seconds == 0) {
      std::this_thread::yield();
    }
    EXPECT_EQ(2, part->waits(0).for_rank);
    part->abort({Code::kShutdown, "stop now"});
    blocked.join();
  });
}

TEST(ShmEngineHostsTest, RanksOfSeveralHostsAreRefused) {
  EngineContext context;
  context.size = 4;
  context.host_of = {7, 7, 3, 7};
  try {
    ShmEngine engine(context);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kInvalidArgument, error.code());
    EXPECT_NE(std::string::npos, std::string(error.what()).find("rank(s) 2 ")) << error.what();
  }
}

}  // namespace
}  // namespace aiacc
