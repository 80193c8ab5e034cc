#include "csrc/engines/hierarchical/hierarchical_engine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/hierarchical_engines.h"

namespace aiacc {
namespace {

class HierarchicalTest : public testing::TestWithParam<Hosts> {
 protected:
  const Hosts& hosts() const { return GetParam(); }
  int size() const { return hosts().size(); }
};

TEST_P(HierarchicalTest, ReducesEveryTypeAndOperation) {
  with_engines(hosts(), [&](int rank, Engine& engine) {
    for (int dtype = 0; dtype < kDataTypes; ++dtype) {
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        for (const std::size_t count : {0, 1, 2, 5, 1000}) {
          check_all_reduce(engine, 0, rank, size(), count, static_cast<DataType>(dtype), op);
        }
      }
    }
  });
}

TEST_P(HierarchicalTest, ReducesLargeBuffersOnEveryLane) {
  with_engines(hosts(), [&](int rank, Engine& engine) {
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      check_all_reduce(engine, lane, rank, size(), 150'001, DataType::kFloat32, ReduceOp::kSum);
    }
  });
}

/// Between hosts, where those have several ranks: equally many on all ranks, for units follow.
TEST_P(HierarchicalTest, TellsHowManyExchangeBlocks) {
  const std::set<int> different(hosts().of.begin(), hosts().of.end());
  const auto number = static_cast<int>(different.size());
  const int expected = number == 1 ? size() : number;
  with_engines(hosts(),
               [&](int, Engine& engine) { EXPECT_EQ(expected, engine.exchanging(size())); });
}

TEST_P(HierarchicalTest, BroadcastsFromEveryRank) {
  with_engines(hosts(), [&](int rank, Engine& engine) {
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      for (int root = 0; root < size(); ++root) {
        for (const std::size_t bytes : {0, 1, 3, 100'003}) {
          check_broadcast(engine, lane, rank, root, bytes);
        }
      }
    }
  });
}

TEST_P(HierarchicalTest, GathersAndScattersMoreThanABlock) {
  with_engines(hosts(), [&](int rank, Engine& engine) {
    check_all_gather(engine, 1, rank, size(), 300'007);
    const std::vector<std::size_t> counts = uneven_counts(size(), 75'001);
    check_reduce_scatter(engine, 1, rank, counts, DataType::kFloat32, ReduceOp::kSum);
    check_reduce_scatter(engine, 0, rank, counts, DataType::kUInt8, ReduceOp::kMin);
    std::vector<std::size_t> only_last(hosts().of.size(), 0);
    only_last.back() = 175'003;
    check_reduce_scatter(engine, 0, rank, only_last, DataType::kFloat64, ReduceOp::kSum);
    check_all_to_all(engine, 0, rank, size(), 75'001);
  });
}

/// Of numbers whose sums are exact, so that there is a reference.
TEST_P(HierarchicalTest, AnySequenceOfOperations) {
  constexpr int kOperations = 60;
  for (unsigned seed = 0; seed < 3; ++seed) {
    with_engines(hosts(), [&](int rank, Engine& engine) {
      std::mt19937 random(seed);  // the same on all ranks
      const auto below = [&](std::size_t limit) { return random() % limit; };
      const std::size_t scales[] = {0, 1, 3, 64, 1'000, 20'011, 100'009};
      for (int i = 0; i < kOperations; ++i) {
        const auto lane = static_cast<int>(below(kLanes + 1));
        const auto dtype = static_cast<DataType>(below(kDataTypes));
        const std::vector<ReduceOp> ops = engine_ops();
        const ReduceOp op = ops[below(ops.size())];
        const std::size_t scale = scales[below(lane == kLanes ? 5 : 7)];
        const auto root = static_cast<int>(below(hosts().of.size()));
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

TEST_P(HierarchicalTest, DoesTheOtherOperations) {
  with_engines(hosts(), [&](int rank, Engine& engine) {
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      for (const std::size_t scale : {0, 1, 4'000}) {
        check_all_gather(engine, lane, rank, size(), scale);
        check_all_to_all(engine, lane, rank, size(), scale);
        check_reduce_scatter(
            engine, lane, rank, uneven_counts(size(), scale), DataType::kFloat16, ReduceOp::kSum);
      }
    }
  });
}

/// Sums of numbers that depend on the order in which they are added.
TEST_P(HierarchicalTest, AllRanksGetTheSameBits) {
  constexpr std::size_t kCount = 150'001;
  std::vector<std::vector<float>> results(hosts().of.size());
  with_engines(hosts(), [&](int rank, Engine& engine) {
    std::vector<float>& mine = results[static_cast<std::size_t>(rank)];
    mine.resize(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      mine[i] = 1.0F / static_cast<float>(i + 1 + 7 * static_cast<std::size_t>(rank));
    }
    engine.all_reduce(0, mine.data(), mine.data(), kCount, {DataType::kFloat32, ReduceOp::kSum});
  });
  for (const std::vector<float>& result : results) {
    expect_equal_bits(results[0], result, hosts().name);
  }
}

TEST_P(HierarchicalTest, LanesWorkAtTheSameTime) {
  with_engines(hosts(), [&](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      threads.emplace_back([&, lane] {
        try {
          for (int i = 0; i < 5; ++i) {
            check_every_operation(engine, lane, rank, size(), lane == 0);
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

/// Every set of ranks, some of which leave out whole hosts or parts of them, twice at a time.
TEST_P(HierarchicalTest, SplitsIntoEverySubset) {
  with_engines(hosts(), [&](int rank, Engine& engine) {
    std::uint32_t split_id = 1;
    for (std::uint32_t mask = 1; mask < (1U << size()); ++mask, split_id += 2) {
      std::vector<int> members;
      for (int member = 0; member < size(); ++member) {
        if ((mask >> member & 1U) != 0) {
          members.push_back(member);
        }
      }
      const auto found = std::find(members.begin(), members.end(), rank);
      if (found == members.end()) {
        continue;
      }
      const auto index = static_cast<int>(found - members.begin());
      const auto count = static_cast<int>(members.size());
      const std::unique_ptr<Engine> part = engine.split(members, split_id);
      EXPECT_STREQ(engine.name(), part->name());
      EXPECT_EQ(engine.lanes(), part->lanes());
      std::vector<int> all(members.size());
      std::iota(all.begin(), all.end(), 0);
      const std::unique_ptr<Engine> again = part->split(all, split_id + 1);
      check_every_operation(*part, 0, index, count);
      check_every_operation(*again, 1, index, count);
    }
    check_every_operation(engine, 0, rank, size());
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts,
                         HierarchicalTest,
                         testing::Values(Hosts{"Alone", {0}},
                                         Hosts{"OneHost", {4, 4, 4}},
                                         Hosts{"OneRankEach", {0, 1, 2}},
                                         Hosts{"TwoAndTwo", {0, 0, 1, 1}},
                                         Hosts{"RoundRobin", {0, 1, 0, 1}},
                                         Hosts{"ThreeAndOne", {0, 0, 0, 1}},
                                         Hosts{"OneAndThree", {0, 1, 1, 1}},
                                         Hosts{"TwoOneOne", {0, 0, 1, 2}},
                                         Hosts{"CrossedThreeAndTwo", {0, 1, 1, 0, 0}}),
                         [](const auto& test) { return std::string(test.param.name); });

/// Rank 0 never comes: whoever waits for it, inside its host or between hosts, is released, and the
/// status that ended the first wait ends all later calls.
TEST(HierarchicalAbortTest, EndsWaitsOnBothLevels) {
  const Hosts hosts{"", {0, 0, 1, 1}};
  with_engines(hosts, [&](int rank, Engine& engine) {
    if (rank == 0) {
      return;
    }
    std::vector<float> data(100'000, 1);
    const auto reduce_on = [&](int lane) {
      engine.all_reduce(
          lane, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum});
    };
    std::atomic<bool> running{false};
    Status seen;
    std::thread blocked([&] {
      running = true;
      try {
        reduce_on(0);
        ADD_FAILURE() << "rank " << rank << ": no error";
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
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      EXPECT_THROW(reduce_on(lane), Error);
    }
  });
}

/// The other ranks never come; the engine that is split is aborted, by another thread.
TEST(HierarchicalAbortTest, OfTheWholeEndsAWaitingSplit) {
  with_engines({"", {0, 0, 1}}, [&](int rank, Engine& engine) {
    if (rank != 2) {
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

/// The connections inside the host are fine when those between hosts break.
TEST(HierarchicalLostPeerTest, IsNamedAndEndsAllLevels) {
  const Hosts hosts{"", {0, 0, 1}};
  TcpWorld world(3);
  std::vector<std::unique_ptr<Engine>> engines(3);
  std::atomic<int> connected{0};
  run_as_ranks(3, [&](int rank, RankThreads& rank_threads) {
    auto& engine = engines[static_cast<std::size_t>(rank)];
    engine = connect(world, hosts, rank);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    ++connected;
    while (connected != 3) {
      std::this_thread::yield();
    }
    if (rank == 2) {
      engine.reset();
      return;
    }
    std::vector<float> data(1000, 1);
    const auto reduce_all = [&] {
      engine->all_reduce(
          0, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum});
    };
    if (rank == 0) {
      try {
        reduce_all();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(Code::kPeerLost, error.code());
        EXPECT_NE(std::string::npos, std::string(error.what()).find("rank 2")) << error.what();
        // As the coordinator does: it tells the rank that waits inside the host.
        engines[1]->abort(error.status());
      }
      EXPECT_THROW(reduce_all(), Error);
    } else {
      EXPECT_THROW(reduce_all(), Error);
    }
  });
}

}  // namespace
}  // namespace aiacc
