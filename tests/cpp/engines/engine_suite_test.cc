// What every engine promises, by one list of cases for all of them and for several numbers of ranks
// and hosts.

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/local/local_engine.h"
#include "csrc/engines/members.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

#ifdef __SANITIZE_THREAD__  // where each access is slow: some of both
constexpr int kLaneStep = kLanes;
const std::vector<DataType> kTypes = {DataType::kFloat32, DataType::kFloat16, DataType::kUInt8};
#else
constexpr int kLaneStep = 1;
const std::vector<DataType> kTypes = all_dtypes();
#endif

constexpr Reduction kSum{DataType::kFloat32, ReduceOp::kSum};

/// Calls `body(lane)` on a thread for each lane, to which ranks come in different orders.
template <class Body>
void on_all_lanes_at_once(Engine& engine, int rank, Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i <= engine.express_lane(); ++i) {
    threads.emplace_back([&, lane = (i + rank) % (engine.express_lane() + 1)] {
      const Status status = status_of([&] { body(lane); });
      if (!status.ok()) {
        ADD_FAILURE() << "lane " << lane << ": " << status.message();
        engine.abort(status);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

class EngineTest : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return world().size(); }
  std::vector<std::size_t> only_last(std::size_t count) const {
    std::vector<std::size_t> counts(world().host_of.size(), 0);
    counts.back() = count;
    return counts;
  }

  template <class Body>
  void on_every_rank(Body body) const {
    with_engines(world(), body);
  }
  /// `body(rank, engine, lane)`
  template <class Body>
  void on_every_lane(Body body) const {
    on_every_rank([&](int rank, Engine& engine) {
      for (int lane = 0; lane <= engine.express_lane(); lane += kLaneStep) {
        body(rank, engine, lane);
      }
    });
  }
};

TEST_P(EngineTest, ReducesEveryTypeAndOp) {
  on_every_lane([&](int rank, Engine& engine, int lane) {
    for (const DataType dtype : kTypes) {
      for (const ReduceOp op : engine_ops()) {
        for (const std::size_t count : {5, 1003, 20'011}) {
          check_all_reduce(engine, lane, rank, size(), count, dtype, op);
        }
        check_reduce_scatter(engine, lane, rank, uneven_counts(size(), 331), dtype, op);
      }
    }
  });
}

TEST_P(EngineTest, ReducesEveryCount) {
  const auto n = static_cast<std::size_t>(size());
  const std::vector<std::size_t> counts = {
      0, 1, 2, n - 1, n + 1, 15, 17, 63, 2048, 2049, 4097, 8192, 8193, 65'536, 150'001, 300'001};
  on_every_lane([&](int rank, Engine& engine, int lane) {
    for (const std::size_t count : counts) {
      check_all_reduce(engine, lane, rank, size(), count, DataType::kFloat32, ReduceOp::kSum);
      check_all_reduce(engine, lane, rank, size(), count, DataType::kUInt8, ReduceOp::kSum);
    }
  });
}

TEST_P(EngineTest, ScattersEveryCount) {
  const std::vector<std::size_t> ones(world().host_of.size(), 1);
  on_every_lane([&](int rank, Engine& engine, int lane) {
    for (const std::size_t scale : {0, 1, 15, 17, 2048, 4096, 8193, 9001}) {
      const auto counts = uneven_counts(size(), scale);
      check_reduce_scatter(engine, lane, rank, counts, DataType::kFloat32, ReduceOp::kSum);
    }
    check_reduce_scatter(engine, lane, rank, ones, DataType::kInt64, ReduceOp::kMax);
    check_reduce_scatter(
        engine, lane, rank, only_last(100'003), DataType::kFloat16, ReduceOp::kMax);
  });
}

/// More than what an engine handles at a time, and not all parts end in the same block.
TEST_P(EngineTest, HandlesManyBlocks) {
  const std::size_t scale = 600'011 / world().host_of.size();
  on_every_rank([&](int rank, Engine& engine) {
    check_broadcast(engine, 1, rank, 0, 1'000'003);
    check_all_gather(engine, 1, rank, size(), scale);
    check_all_to_all(engine, 1, rank, size(), scale / 2);
    const std::vector<std::size_t> counts = uneven_counts(size(), scale / 2);
    check_reduce_scatter(engine, 1, rank, counts, DataType::kFloat32, ReduceOp::kSum);
    check_reduce_scatter(engine, 0, rank, counts, DataType::kUInt16, ReduceOp::kMin);
    check_reduce_scatter(engine, 0, rank, only_last(175'003), DataType::kFloat64, ReduceOp::kSum);
  });
}

TEST_P(EngineTest, ReducesPiecesOfEverySize) {
  const std::vector<std::size_t> counts = {
      0, 1, 300'001, 0, 0, 0, 0, 17, 2, 100'000, 5, 700'003, 1, 64, 0};
  on_every_lane([&](int rank, Engine& engine, int lane) {
    EXPECT_EQ(0U, world().name.find(engine.name()));
    EXPECT_EQ(kLanes, engine.lanes());
    check_pieces(engine, lane, rank, size(), counts, {DataType::kInt32, ReduceOp::kSum});
    check_pieces(engine, lane, rank, size(), counts, {DataType::kFloat16, ReduceOp::kMax, 0.25});
    check_every_operation(engine, lane, rank, size());
  });
}

TEST_P(EngineTest, LanesWorkAtTheSameTime) {
  on_every_rank([&](int rank, Engine& engine) {
    on_all_lanes_at_once(engine, rank, [&](int lane) {
      const std::vector<std::size_t> counts(20, static_cast<std::size_t>(10'007 * (lane + 1)));
      check_pieces(engine, lane, rank, size(), counts, kSum);
      for (int i = 0; i < 8; ++i) {
        check_every_operation(
            engine, lane, rank, size(), world().exchanges_at_once || lane == i / 4);
      }
    });
  });
}

/// Of numbers whose sums are exact, so that there is a reference.
TEST_P(EngineTest, DoesAnySequenceOfOperations) {
  constexpr int kOperations = 60;
  const std::size_t scales[] = {0, 1, 3, 64, 1'000, 20'011, 100'009};
  for (unsigned seed = 0; seed < 3; ++seed) {
    on_every_rank([&](int rank, Engine& engine) {
      std::mt19937 random(seed);  // the same on all ranks
      const auto below = [&](std::size_t limit) { return random() % limit; };
      for (int i = 0; i < kOperations; ++i) {
        const auto lane = static_cast<int>(below(kLanes + 1));
        const auto dtype = static_cast<DataType>(below(kDataTypes));
        const ReduceOp op = engine_ops()[below(engine_ops().size())];
        const std::size_t scale = scales[below(lane == kLanes ? 5 : 7)];
        const auto root = static_cast<int>(below(world().host_of.size()));
        switch (below(6)) {
          case 0:
            check_broadcast(engine, lane, rank, root, scale);
            break;
          case 1:
            check_all_gather(engine, lane, rank, size(), scale / 8);
            break;
          case 2:
            check_reduce_scatter(engine, lane, rank, uneven_counts(size(), scale / 8), dtype, op);
            break;
          case 3:
            check_all_to_all(engine, lane, rank, size(), scale / 16);
            break;
          case 4:
            check_pieces(engine, lane, rank, size(), {scale / 2, 0, scale}, {dtype, op});
            break;
          default:
            check_all_reduce(engine, lane, rank, size(), scale, dtype, op);
        }
      }
    });
  }
}

/// Rounding depends on the order of additions, so this fails unless all ranks share one order. Of
/// two NaN that are added either may stay, depending on where a loop of vectors ends: between runs
/// they count as equal.
TEST_P(EngineTest, BitsAreEqualOnAllRanksAndInEveryRun) {
  constexpr std::size_t kCount = 70'001;
  const std::vector<std::size_t> counts(world().host_of.size(), 20'011);
  for (const bool express : {false, true}) {
    std::vector<std::vector<float>> sums(world().host_of.size());
    std::vector<std::vector<float>> parts(world().host_of.size());
    for (int run = 0; run < 2; ++run) {
      const std::vector<std::vector<float>> sums_before = sums;
      on_every_rank([&](int rank, Engine& engine) {
        const int lane = express ? engine.express_lane() : run;
        const auto index = static_cast<std::size_t>(rank);
        const auto unify = [](std::vector<float>& values) {
          std::replace_if(values.begin(), values.end(), [](float x) { return std::isnan(x); }, NAN);
        };
        sums[index] = any_elements<float>(kCount, static_cast<unsigned>(rank));
        engine.all_reduce(lane, sums[index].data(), sums[index].data(), kCount, kSum);
        const auto input = any_elements<float>(20'011 * counts.size(), static_cast<unsigned>(rank));
        std::vector<float> part(20'011);
        engine.reduce_scatter(lane, input.data(), part.data(), counts, kSum);
        unify(part);
        if (run > 0) {
          expect_equal_bits(parts[index], part, "part of rank " + std::to_string(rank));
          std::vector<float> before = sums_before[index];
          std::vector<float> now = sums[index];
          unify(before);
          unify(now);
          expect_equal_bits(before, now, "another run on rank " + std::to_string(rank));
        }
        parts[index] = part;
      });
      for (const std::vector<float>& sum : sums) {
        expect_equal_bits(sums[0], sum, "on another rank");
      }
    }
  }
}

/// Rank 0 never comes, so everybody else is stuck until the abort.
TEST_P(EngineTest, AnAbortReachesEveryBlockedLaneAndEveryLaterCall) {
  on_every_rank([&](int rank, Engine& engine) {
    std::vector<std::unique_ptr<BlockedCall>> blocked;
    for (int lane = 0; rank != 0 && lane <= engine.express_lane(); ++lane) {
      blocked.push_back(std::make_unique<BlockedCall>([&engine, lane] {
        std::vector<float> data(1 << 20, 1.0F);
        engine.all_reduce(lane, data.data(), data.data(), data.size(), kSum);
      }));
    }
    const Status reason(Code::kShutdown, "stop now");
    const auto expect_reason = [&](const Status& seen) {
      EXPECT_EQ(reason.code(), seen.code());
      EXPECT_EQ(reason.message(), seen.message());
    };
    engine.abort(reason);
    engine.abort({Code::kInternal, "too late"});
    for (const auto& call : blocked) {
      expect_reason(call->join());
    }
    float value = 0;
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      expect_reason(status_of([&] { engine.broadcast(lane, &value, sizeof value, 0); }));
      expect_reason(status_of([&] { engine.all_reduce(lane, &value, &value, 1, kSum); }));
    }
  });
}

World alone() {
  return {"local_1", {0}, [](const EngineContext& context) {
            return std::make_unique<LocalEngine>(context);
          }};
}

const auto kSmallWorlds = testing::Values(alone(),
                                          tcp_ranks(1),
                                          tcp_ranks(2),
                                          tcp_ranks(3),
                                          tcp_ranks(4),
                                          shm_ranks(1),
                                          shm_ranks(2),
                                          shm_ranks(3),
                                          shm_ranks(4),
                                          on_hosts("Alone", {0}),
                                          on_hosts("OneHost", {4, 4, 4}),
                                          on_hosts("OneRankEach", {0, 1, 2}),
                                          on_hosts("TwoAndTwo", {0, 0, 1, 1}),
                                          on_hosts("RoundRobin", {0, 1, 0, 1}),
                                          on_hosts("ThreeAndOne", {0, 0, 0, 1}),
                                          on_hosts("OneAndThree", {0, 1, 1, 1}),
                                          on_hosts("TwoOneOne", {0, 0, 1, 2}),
                                          on_hosts("CrossedThreeAndTwo", {0, 1, 1, 0, 0}));
INSTANTIATE_TEST_SUITE_P(Small, EngineTest, kSmallWorlds, name_of_world);
INSTANTIATE_TEST_SUITE_P(Large,
                         EngineTest,
                         testing::Values(tcp_ranks(5), tcp_ranks(7), tcp_ranks(8), shm_ranks(7)),
                         name_of_world);
/// Most buffers go through them in several blocks.
INSTANTIATE_TEST_SUITE_P(SmallSlots,
                         EngineTest,
                         testing::Values(shm_ranks(1, 8192),
                                         shm_ranks(3, 8192),
                                         shm_ranks(4, 8192)),
                         name_of_world);

/// Every set of ranks, some of which leave out whole hosts or parts of them, twice at a time.
class EngineSplitTest : public EngineTest {};

TEST_P(EngineSplitTest, EverySubsetWorksOnEveryLane) {
  on_every_rank([&](int rank, Engine& engine) {
    std::uint32_t split_id = 1;
    for (std::uint32_t mask = 1; mask < (1U << size()); ++mask, split_id += 2) {
      std::vector<int> members;
      for (int member = 0; member < size(); ++member) {
        if ((mask >> member & 1U) != 0) {
          members.push_back(member);
        }
      }
      const auto count = static_cast<int>(members.size());
      with_part(engine, rank, members, split_id, [&](Engine& part, int index) {
        EXPECT_EQ(engine.lanes(), part.lanes());
        EXPECT_STREQ(engine.name(), part.name());
        const std::unique_ptr<Engine> again = part.split(all_ranks(count), split_id + 1);
        for (int lane = 0; lane <= part.express_lane(); ++lane) {
          check_every_operation(part, lane, index, count);
        }
        check_every_operation(*again, 1, index, count);
      });
    }
    check_every_operation(engine, 0, rank, size());
  });
}

INSTANTIATE_TEST_SUITE_P(Small, EngineSplitTest, kSmallWorlds, name_of_world);

/// Three ranks.
class EnginePartsTest : public EngineTest {};

/// Rank 1 is in both halves and uses them from two threads, which also make them.
TEST_P(EnginePartsTest, OverlappingPartsWorkAtTheSameTime) {
  const std::vector<std::vector<int>> parts = {{0, 1}, {1, 2}};
  on_every_rank([&](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    for (std::uint32_t split_id = 0; split_id < 2; ++split_id) {
      threads.emplace_back([&, split_id] {
        const Status status = status_of([&] {
          with_part(engine, rank, parts[split_id], split_id, [&](Engine& part, int index) {
            for (int i = 0; i < 10; ++i) {
              check_every_operation(part, i % (part.lanes() + 1), index, 2);
            }
          });
        });
        if (!status.ok()) {
          ADD_FAILURE() << status.message();
          engine.abort(status);
        }
      });
    }
    check_every_operation(engine, 0, rank, 3);
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

TEST_P(EnginePartsTest, AnAbortReachesOnePartAndNoOther) {
  on_every_rank([&](int rank, Engine& engine) {
    const std::unique_ptr<Engine> doomed = engine.split({0, 1, 2}, 1);
    const std::unique_ptr<Engine> spared = engine.split({0, 1, 2}, 2);
    float value = 1;
    BlockedCall blocked([&] {
      if (rank != 0) {  // which never comes
        doomed->all_reduce(0, &value, &value, 1, kSum);
      }
    });
    doomed->abort({Code::kShutdown, "stop now"});
    EXPECT_EQ(rank == 0 ? "" : "stop now", blocked.join().message());
    EXPECT_THROW(doomed->broadcast(0, &value, sizeof value, 0), Error);
    check_every_operation(*spared, 0, rank, 3);
    check_every_operation(engine, 0, rank, 3);
  });
}

/// The other ranks never come; the engine that is split is aborted, by another thread.
TEST_P(EnginePartsTest, AnAbortOfTheWholeEndsAWaitingSplit) {
  on_every_rank([&](int rank, Engine& engine) {
    if (rank == 2) {
      BlockedCall waiting([&] { engine.split({0, 1, 2}, 4); });
      engine.abort({Code::kPeerLost, "rank 0 is gone"});
      EXPECT_EQ("rank 0 is gone", waiting.join().message());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(ThreeRanks,
                         EnginePartsTest,
                         testing::Values(tcp_ranks(3),
                                         shm_ranks(3),
                                         on_hosts("OneHost", {4, 4, 4}),
                                         on_hosts("TwoAndOne", {0, 0, 1})),
                         name_of_world);

}  // namespace
}  // namespace aiacc
