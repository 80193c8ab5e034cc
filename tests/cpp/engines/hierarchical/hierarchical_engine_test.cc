// What is special about HierarchicalEngine; what all engines promise is in engine_suite.cc.

#include "csrc/engines/hierarchical/hierarchical_engine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/hierarchical/host_topology.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/errors.h"

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

}  // namespace
}  // namespace aiacc
