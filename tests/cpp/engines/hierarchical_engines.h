#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "csrc/engines/hierarchical/hierarchical_engine.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {

inline constexpr int kLanes = 2;
/// Blocks of a quarter of the usual size: sanitizers take long for bytes.
inline constexpr std::size_t kUnitBytes = std::size_t{256} << 10;

/// Hosts of the ranks, and how gtest calls them.
struct Hosts {
  const char* name;
  std::vector<int> of;
  int size() const { return static_cast<int>(of.size()); }
};

inline std::unique_ptr<Engine> connect(TcpWorld& world,
                                       const Hosts& hosts,
                                       int rank,
                                       HierarchyLevels levels = tcp_levels()) {
  EngineContext context;
  context.rank = rank;
  context.size = hosts.size();
  context.host_of = hosts.of;
  context.lanes = kLanes;
  context.unit_bytes = kUnitBytes;
  context.connector = &world.connector(rank);
  return std::make_unique<HierarchicalEngine>(context, std::move(levels));
}

/// Runs `body(rank, engine)` on every rank; the failure of one aborts the engines of the others.
/// All engines live until every rank has ended.
template <class Body>
void with_engines(const Hosts& hosts, const HierarchyLevels& levels, Body body) {
  TcpWorld world(hosts.size());
  std::vector<std::unique_ptr<Engine>> engines(hosts.of.size());
  run_as_ranks(hosts.size(), [&](int rank, RankThreads& rank_threads) {
    std::unique_ptr<Engine>& engine = engines[static_cast<std::size_t>(rank)];
    engine = connect(world, hosts, rank, levels);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    body(rank, *engine);
  });
}

template <class Body>
void with_engines(const Hosts& hosts, Body body) {
  with_engines(hosts, tcp_levels(), body);
}

}  // namespace aiacc
