#include "tests/cpp/engines/engine_suite.h"

#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engines/members.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

#ifdef __SANITIZE_THREAD__  // where each access is slow: some of both
constexpr int kLaneStep = kLanes;
constexpr std::size_t kLarge = 100'001;
const std::vector<DataType> kTypes = {DataType::kFloat32, DataType::kFloat16, DataType::kUInt8};
#else
constexpr int kLaneStep = 1;
constexpr std::size_t kLarge = 300'001;
const std::vector<DataType> kTypes = all_dtypes();
#endif

/// `body(rank, engine, lane)` on one lane after the other.
template <class Body>
void on_every_lane(const World& world, Body body) {
  with_engines(world, [&](int rank, Engine& engine) {
    for (int lane = 0; lane <= engine.express_lane(); lane += kLaneStep) {
      body(rank, engine, lane);
    }
  });
}

/// What fails in a thread of a rank ends the engines of the others, too.
template <class Call>
void check(Engine& engine, const std::string& where, Call call) {
  const Status status = status_of(call);
  if (!status.ok()) {
    ADD_FAILURE() << where << status.message();
    engine.abort(status);
  }
}

/// Calls `body(lane)` on a thread for each lane, to which ranks come in different orders.
template <class Body>
void on_all_lanes_at_once(Engine& engine, int rank, Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i <= engine.express_lane(); ++i) {
    threads.emplace_back([&, lane = (i + rank) % (engine.express_lane() + 1)] {
      check(engine, "lane " + std::to_string(lane) + ": ", [&] { body(lane); });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

std::vector<std::size_t> only_last(int size, std::size_t count) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(size), 0);
  counts.back() = count;
  return counts;
}

}  // namespace

TEST_P(EngineTest, ReducesEveryTypeAndOp) {
  on_every_lane(world(), [&](int rank, Engine& engine, int lane) {
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
      0, 1, 2, n - 1, n + 1, 15, 17, 63, 2048, 2049, 4097, 8192, 8193, 65'536, kLarge / 2, kLarge};
  on_every_lane(world(), [&](int rank, Engine& engine, int lane) {
    for (const std::size_t count : counts) {
      check_all_reduce(engine, lane, rank, size(), count, DataType::kFloat32, ReduceOp::kSum);
      check_all_reduce(engine, lane, rank, size(), count, DataType::kUInt8, ReduceOp::kSum);
    }
  });
}

TEST_P(EngineTest, ScattersGathersAndExchangesEveryCount) {
  const std::vector<std::size_t> ones(world().host_of.size(), 1);
  on_every_lane(world(), [&](int rank, Engine& engine, int lane) {
    for (const std::size_t scale : {0, 1, 15, 17, 2048, 4096, 8193, 9001}) {
      const auto counts = uneven_counts(size(), scale);
      check_reduce_scatter(engine, lane, rank, counts, DataType::kFloat32, ReduceOp::kSum);
      check_all_gather(engine, lane, rank, size(), scale);
      check_all_to_all(engine, lane, rank, size(), scale);
      for (int root = 0; root < size(); ++root) {
        check_broadcast(engine, lane, rank, root, scale);
      }
    }
    check_reduce_scatter(engine, lane, rank, ones, DataType::kInt64, ReduceOp::kMax);
    check_reduce_scatter(
        engine, lane, rank, only_last(size(), 100'003), DataType::kFloat16, ReduceOp::kMax);
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
    check_reduce_scatter(
        engine, 0, rank, only_last(size(), 175'003), DataType::kFloat64, ReduceOp::kSum);
  });
}

TEST_P(EngineTest, ReducesPiecesOfEverySize) {
  const std::vector<std::size_t> counts = {
      0, 1, kLarge, 0, 0, 0, 0, 17, 2, 100'000, 5, 2 * kLarge, 1, 64, 0};
  on_every_lane(world(), [&](int rank, Engine& engine, int lane) {
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
        const std::vector<std::size_t> counts = uneven_counts(size(), scale / 8);
        const std::function<void()> operations[] = {
            [&] { check_broadcast(engine, lane, rank, root, scale); },
            [&] { check_all_gather(engine, lane, rank, size(), scale / 8); },
            [&] { check_reduce_scatter(engine, lane, rank, counts, dtype, op); },
            [&] { check_all_to_all(engine, lane, rank, size(), scale / 16); },
            [&] { check_pieces(engine, lane, rank, size(), {scale / 2, 0, scale}, {dtype, op}); },
            [&] { check_all_reduce(engine, lane, rank, size(), scale, dtype, op); }};
        operations[below(std::size(operations))]();
      }
    });
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

/// Rank 0 never finishes the first one, and never starts those that the others wait for.
TEST_P(EngineTest, AnAbortEndsPiecesThatAreUnderWay) {
  on_every_rank([&](int rank, Engine& engine) {
    std::vector<std::vector<float>> pieces(Engine::kTickets, std::vector<float>(100'000, 1));
    const auto start = [&](int ticket) {
      std::vector<float>& piece = pieces[static_cast<std::size_t>(ticket)];
      engine.start_all_reduce(0, ticket, piece.data(), piece.size(), kSum);
    };
    BlockedCall blocked([&] {
      for (int ticket = 0; ticket < (rank == 0 ? 1 : 3); ++ticket) {
        start(ticket);
      }
      for (int ticket = 0; rank != 0 && ticket < 3; ++ticket) {
        engine.finish_all_reduce(0, ticket);
      }
    });
    engine.abort({Code::kShutdown, "stop now"});
    const Status seen = blocked.join();
    EXPECT_TRUE(rank == 0 || seen.message() == "stop now") << seen.message();
    EXPECT_EQ("stop now", status_of([&] { start(3); }).message());
  });
}

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

/// A rank in the middle is in two parts and uses them from two threads, which also make them.
TEST_P(EnginePartsTest, OverlappingPartsWorkAtTheSameTime) {
  on_every_rank([&](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    for (int first = 0; first + 1 < size(); ++first) {
      threads.emplace_back([&, first] {
        check(engine, "", [&] {
          for (int i = 0; i < 3; ++i) {
            const auto split_id = static_cast<std::uint32_t>(3 * first + i);
            with_part(engine, rank, {first, first + 1}, split_id, [&](Engine& part, int index) {
              for (int lane = 0; lane <= part.express_lane(); ++lane) {
                check_every_operation(part, lane, index, 2);
              }
            });
          }
        });
      });
    }
    check_every_operation(engine, 0, rank, size());
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

TEST_P(EnginePartsTest, AnAbortReachesOnePartAndNoOther) {
  on_every_rank([&](int rank, Engine& engine) {
    const std::unique_ptr<Engine> doomed = engine.split(all_ranks(size()), 1);
    const std::unique_ptr<Engine> spared = engine.split(all_ranks(size()), 2);
    float value = 1;
    BlockedCall blocked([&] {
      if (rank != 0) {  // which never comes
        doomed->all_reduce(0, &value, &value, 1, kSum);
      }
    });
    doomed->abort({Code::kShutdown, "stop now"});
    EXPECT_EQ(rank == 0 ? "" : "stop now", blocked.join().message());
    EXPECT_THROW(doomed->broadcast(0, &value, sizeof value, 0), Error);
    const std::unique_ptr<Engine> later = engine.split(all_ranks(size()), 3);
    for (Engine* whole : {spared.get(), later.get(), &engine}) {
      check_every_operation(*whole, 0, rank, size());
    }
  });
}

/// The others never come; the engine that is split is aborted, by another thread. What the wait has
/// left behind does not disturb the same split of the next engine.
TEST_P(EnginePartsTest, AnAbortOfTheWholeEndsAWaitingSplit) {
  on_every_rank([&](int rank, Engine& engine) {
    if (rank > 0 && rank == size() - 1) {
      BlockedCall waiting([&] { engine.split(all_ranks(size()), 4); });
      engine.abort({Code::kPeerLost, "rank 0 is gone"});
      EXPECT_EQ("rank 0 is gone", waiting.join().message());
    }
  });
  on_every_rank([&](int rank, Engine& engine) {
    check_every_operation(*engine.split(all_ranks(size()), 4), 0, rank, size());
  });
}

}  // namespace aiacc
