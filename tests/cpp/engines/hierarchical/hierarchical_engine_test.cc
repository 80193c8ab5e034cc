// What is special about HierarchicalEngine: what it is put together from, and what it does where
// memory cannot be shared. What all engines promise is in engine_suite.cc.

#include "csrc/engines/hierarchical/hierarchical_engine.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/hierarchical/host_topology.h"
#include "csrc/engines/local/local_engine.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/fakes/fake_engine.h"

namespace aiacc {
namespace {

/// Between hosts, where those have several ranks: equally many on all ranks, for units follow.
TEST(HierarchicalTest, TellsHowManyExchangeBlocks) {
  const std::vector<std::pair<std::vector<int>, int>> expected = {{{0}, 1},
                                                                  {{4, 4, 4}, 3},
                                                                  {{0, 1, 2}, 3},
                                                                  {{0, 0, 1, 1}, 2},
                                                                  {{0, 0, 0, 1}, 2},
                                                                  {{0, 0, 1, 2}, 3},
                                                                  {{0, 1, 1, 0, 0}, 2}};
  for (const auto& [host_of, exchanging] : expected) {
    const World world = on_hosts("", host_of);
    with_engines(world, [&world, number = exchanging](int, Engine& engine) {
      EXPECT_EQ(number, engine.exchanging(world.size()));
    });
  }
}

/// The connections inside the host are fine when those between hosts break.
TEST(HierarchicalTest, ALostRankIsNamedAndEndsAllLevels) {
  const World hosts = on_hosts("", {0, 0, 1});
  TcpWorld world(3);
  std::vector<std::unique_ptr<Engine>> engines(3);
  std::atomic<int> connected{0};
  run_as_ranks(3, [&](int rank, RankThreads& rank_threads) {
    auto& engine = engines[static_cast<std::size_t>(rank)];
    engine = connect(world, hosts, rank);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    await_all(connected, 3);
    if (rank == 2) {
      engine.reset();
      return;
    }
    std::vector<float> data(1000, 1);
    const auto reduce_all = [&] {
      engine->all_reduce(0, data.data(), data.data(), data.size(), kSum);
    };
    if (rank == 0) {
      const Status lost = status_of(reduce_all);
      expect_error(lost, Code::kPeerLost, {"rank 2"});
      // As the coordinator does: it tells the rank that waits inside the host.
      engines[1]->abort(lost);
    }
    EXPECT_THROW(reduce_all(), Error);
  });
}

TEST(HostTopology, HoldsTogetherForAnySpread) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<int> host_of(1 + random() % 12);
    for (int& host : host_of) {
      host = static_cast<int>(random() % 4);
    }
    const HostTopology layout(host_of);
    std::size_t fewest = host_of.size();
    std::size_t most = 0;
    for (int host = 0; host < layout.hosts(); ++host) {
      fewest = std::min(fewest, layout.ranks_on(host).size());
      most = std::max(most, layout.ranks_on(host).size());
    }
    EXPECT_EQ(static_cast<std::size_t>(layout.columns()), fewest);
    EXPECT_EQ(layout.even(), fewest == most);
    for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
      EXPECT_EQ(layout.ranks_on(layout.host(rank))[static_cast<std::size_t>(layout.local(rank))],
                rank);
    }
    for (int column = 0; column < layout.columns(); ++column) {
      const std::vector<int> ranks = layout.column(column);
      ASSERT_EQ(static_cast<int>(ranks.size()), layout.hosts());
      EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
      for (int host = 0; host < layout.hosts(); ++host) {
        const int rank = ranks[static_cast<std::size_t>(layout.index_in_column(column, host))];
        EXPECT_EQ(layout.host(rank), host);
        EXPECT_EQ(layout.local(rank), column);
      }
    }
  }
}

/// tcp_levels, except that `before(first rank, number of ranks)` is called before ranks share
/// memory, and may throw.
template <class Before>
HierarchyLevels levels_with(const Before& before) {
  HierarchyLevels levels = tcp_levels();
  levels.inside = [before, inside = levels.inside](const EngineContext& job,
                                                   const ShmOptions& options,
                                                   const Cancellation& interrupt) {
    before(options.ranks.front(), options.ranks.size());
    return inside(job, options, interrupt);
  };
  return levels;
}

void check_lanes(Engine& engine, int rank, int size) {
  for (int lane = 0; lane <= engine.express_lane(); ++lane) {
    check_every_operation(engine, lane, rank, size);
  }
}

/// That the engine among some of the ranks works, and is called that.
void check_part(Engine& engine,
                int rank,
                const std::vector<int>& members,
                std::uint32_t split_id,
                const char* name) {
  with_part(engine, rank, members, split_id, [&](Engine& part, int index) {
    EXPECT_STREQ(name, part.name());
    check_lanes(part, index, static_cast<int>(members.size()));
  });
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// What rank 0 of two hosts with two ranks each asks for.
std::size_t slot_bytes_with_units_of(std::size_t unit_bytes) {
  std::atomic<std::size_t> slot_bytes{0};
  HierarchyLevels levels = tcp_levels();
  levels.inside = [&](const EngineContext&, const ShmOptions& options, const Cancellation&) {
    slot_bytes = options.slot_bytes;
    return std::unique_ptr<ShmEngine>();
  };
  levels.across =
      [](const EngineContext&, const std::vector<int>&, std::uint32_t, const Cancellation&) {
        return std::make_unique<LocalEngine>(EngineContext());
      };
  EngineContext context;
  context.size = 4;
  context.host_of = {0, 0, 1, 1};
  context.unit_bytes = unit_bytes;
  const HierarchicalEngine engine(context, levels);
  return slot_bytes;
}

TEST(HierarchicalMemory, HasNoMoreRoomThanUnitsNeed) {
  constexpr std::size_t kMebibyte = std::size_t{1} << 20;
  EXPECT_EQ(kMebibyte / 4, slot_bytes_with_units_of(256));
  EXPECT_EQ(std::size_t{300'032}, slot_bytes_with_units_of(300'000));
  EXPECT_EQ(kMebibyte, slot_bytes_with_units_of(kMebibyte));
  EXPECT_EQ(2 * kMebibyte, slot_bytes_with_units_of(8 * kMebibyte));
  EXPECT_EQ(2 * kMebibyte, slot_bytes_with_units_of(1024 * kMebibyte));
}

TEST(HierarchicalFallback, WithoutMemoryOnOneHostAllGoFlat) {
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1, 0, 1}, {0, 0, 0}}) {
    const int poor = host_of[1];  // the first rank of a host
    const HierarchyLevels levels = levels_with([poor](int first, std::size_t) {
      if (first == poor) {
        throw Error(Code::kEngine, "[test] no memory; buy some");
      }
    });
    testing::internal::CaptureStderr();
    with_engines(on_hosts("", host_of, levels), [&](int rank, Engine& engine) {
      EXPECT_STREQ("tcp", engine.name());
      check_lanes(engine, rank, static_cast<int>(host_of.size()));
      check_part(engine, rank, {0, 1, 2}, 5, "tcp");
    });
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(1u, lines_of(log)) << log;
    EXPECT_NE(std::string::npos, log.find("travel by tcp: [test] no memory; buy some")) << log;
  }
}

/// The engine of all ranks has its memory, and keeps it.
TEST(HierarchicalFallback, OfAPart) {
  const std::vector<std::vector<int>> layouts = {{0, 0, 0, 0}, {0, 0, 0, 1}};
  for (const std::vector<int>& host_of : layouts) {
    const HierarchyLevels levels = levels_with([](int, std::size_t ranks) {
      if (ranks == 2) {
        throw Error(Code::kEngine, "[test] no memory for two");
      }
    });
    testing::internal::CaptureStderr();
    with_engines(on_hosts("", host_of, levels), [&host_of = host_of](int rank, Engine& engine) {
      EXPECT_STREQ("hierarchical", engine.name());
      const bool alone_there = host_of[3] != 0;  // so that two of the part share a host
      check_part(engine, rank, {1, 2, 3}, 0, alone_there ? "tcp" : "hierarchical");
      check_part(engine, rank, {0, 1}, 1, "tcp");
      check_lanes(engine, rank, 4);
    });
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(host_of[3] == 0 ? 1u : 2u, lines_of(log)) << log;
  }
}

TEST(HierarchicalFallback, IsForMemoryAlone) {
  for (const std::vector<int>& host_of : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1}}) {
    const HierarchyLevels levels = levels_with([](int, std::size_t ranks) {
      if (ranks > 1) {
        throw Error(Code::kPeerLost, "[test] rank 7 is gone");
      }
    });
    TcpWorld world(3);
    std::atomic<int> failed{0};
    run_as_ranks(3, [&](int rank, RankThreads&) {
      const Status status = status_of([&] { connect(world, on_hosts("", host_of, levels), rank); });
      failed += status.code() == Code::kPeerLost ? 1 : 0;
    });
    EXPECT_EQ(3, failed);
  }
}

/// Rank 0 is not heard of whether it has memory; who waits to learn it is told of the abort.
TEST(HierarchicalFallback, AnAbortEndsTheWaitForOthers) {
  std::promise<void> asks;
  std::promise<void> waited;
  const std::shared_future<void> asked = asks.get_future().share();
  const std::shared_future<void> over = waited.get_future().share();
  std::atomic<int> aborts{0};
  std::atomic<int> told{0};
  const HierarchyLevels levels = levels_with([&](int first, std::size_t ranks) {
    if (first == 0 && ranks == 1) {
      asks.set_value();
      over.wait();
      throw Error(Code::kInternal, "[test] too late");
    }
  });
  with_engines(on_hosts("", {0, 0, 1, 1}, levels), [&](int rank, Engine& engine) {
    if (rank == 1) {
      return;
    }
    BlockedCall splitting([&] { engine.split({0, 2, 3}, 0); });
    if (rank != 0) {
      asked.wait();
      engine.abort(Status(Code::kPeerLost, "rank 0 is gone"));
      if (++aborts == 2) {  // rank 0 would tell a rank that goes on that it is too late
        waited.set_value();
      }
    }
    const Status seen = splitting.join();
    EXPECT_FALSE(seen.ok());
    if (seen.message() == "rank 0 is gone") {
      ++told;
    } else if (rank != 0) {  // it has learned first that the other one of its host has stopped
      EXPECT_EQ(seen.message().find("too late"), std::string::npos) << seen.message();
    }
  });
  EXPECT_GE(told.load(), 1);
}

TEST(HierarchicalParts, OneHostNeedsNoConnections) {
  HierarchyLevels levels = tcp_levels();
  levels.across = [](auto&&...) -> std::unique_ptr<Engine> {
    throw Error(Code::kInternal, "[test] nothing is across");
  };
  with_engines(on_hosts("", {3, 3, 3}, levels), [](int rank, Engine& engine) {
    check_lanes(engine, rank, 3);
    if (rank != 1) {
      const auto part = engine.split({0, 2}, 0);
      check_lanes(*part, rank / 2, 2);
      const auto alone = part->split({rank / 2}, static_cast<std::uint32_t>(rank));
      check_lanes(*alone, 0, 1);
    }
  });
}

TEST(HierarchicalParts, HostsOfOneRankNeedNoMemory) {
  const HierarchyLevels levels =
      levels_with([](int, std::size_t) { FAIL() << "no two share a host"; });
  with_engines(on_hosts("", {2, 0, 1}, levels), [](int rank, Engine& engine) {
    EXPECT_STREQ("hierarchical", engine.name());
    check_lanes(engine, rank, 3);
  });
}

/// Any engine can be across; this one finds ranks that do not do the same on a lane.
TEST(HierarchicalParts, TheOrderIsTheSameOnAllHosts) {
  std::mutex mutex;
  std::map<std::uint32_t, std::shared_ptr<FakeHub>> hubs;
  HierarchyLevels levels = tcp_levels();
  levels.across = [&](const EngineContext& job,
                      const std::vector<int>& ranks,
                      std::uint32_t split_id,
                      const Cancellation&) -> std::unique_ptr<Engine> {
    const std::lock_guard lock(mutex);
    std::shared_ptr<FakeHub>& hub = hubs[split_id];
    if (hub == nullptr) {
      hub = std::make_shared<FakeHub>(static_cast<int>(ranks.size()), job.lanes);
    }
    return std::make_unique<FakeEngine>(hub, index_among(ranks, job.rank, job.size));
  };
  with_engines(on_hosts("", {0, 1, 0, 1, 1}, levels), [](int rank, Engine& engine) {
    check_lanes(engine, rank, 5);
    check_all_reduce(engine, 0, rank, 5, 3'000'001, DataType::kFloat32, ReduceOp::kSum);
  });
  EXPECT_EQ(3u, hubs.size());  // of all, and of two columns
}

TEST(HierarchicalParts, NeedTheHostOfEveryRank) {
  EngineContext context;
  context.size = 2;
  expect_error(status_of([&] { create_hierarchical_engine(context); }),
               Code::kInvalidArgument,
               {"1 ranks are known (expected 2"});
}

}  // namespace
}  // namespace aiacc
