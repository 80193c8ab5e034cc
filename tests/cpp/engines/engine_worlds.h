#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/hierarchical/hierarchical_engine.h"
#include "csrc/engines/members.h"
#include "csrc/engines/shm/shm_engine.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {

inline constexpr int kLanes = 2;

/// Ranks on hosts, with engines of one kind. They are threads of this process, or processes.
struct World {
  std::string name;          ///< how gtest calls it
  std::vector<int> host_of;  ///< by rank
  std::function<std::unique_ptr<Engine>(const EngineContext&)> make;
  bool exchanges_at_once = true;  ///< all-to-alls may run on several lanes at the same time
  int own_rank = -1;              ///< of this process; -1: ranks are threads

  int size() const { return static_cast<int>(host_of.size()); }
};

inline std::string name_of_world(const testing::TestParamInfo<World>& test) {
  return test.param.name;
}

inline World tcp_ranks(int size) {
  return {"tcp_" + std::to_string(size),
          std::vector<int>(static_cast<std::size_t>(size)),
          [](const EngineContext& context) { return std::make_unique<TcpEngine>(context); }};
}

/// `slot_bytes`: of shared memory; 0: as many as the engine chooses.
inline World shm_ranks(int size, std::size_t slot_bytes = 0) {
  const std::string slots = slot_bytes > 0 ? "_slots_of_" + std::to_string(slot_bytes) : "";
  return {"shm_" + std::to_string(size) + slots,
          std::vector<int>(static_cast<std::size_t>(size)),
          [slot_bytes](const EngineContext& context) {
            return std::make_unique<ShmEngine>(context,
                                               ShmOptions{all_ranks(context.size), 0, slot_bytes});
          }};
}

inline World on_hosts(const std::string& name,
                      std::vector<int> host_of,
                      HierarchyLevels levels = tcp_levels()) {
  return {"hierarchical_" + name,
          std::move(host_of),
          [levels = std::move(levels)](const EngineContext& context) {
            return std::make_unique<HierarchicalEngine>(context, levels);
          },
          false};
}

inline EngineContext context_of(const World& world, int rank) {
  EngineContext context;
  context.rank = rank;
  context.size = world.size();
  context.host_of = world.host_of;
  context.lanes = kLanes;
  // Blocks of a quarter of the usual size: sanitizers take long for bytes.
  context.unit_bytes = std::size_t{256} << 10;
  return context;
}

/// The engine of one rank; blocks until all ranks connect.
inline std::unique_ptr<Engine> connect(TcpWorld& connections, const World& world, int rank) {
  EngineContext context = context_of(world, rank);
  context.connector = &connections.connector(rank);
  return world.make(context);
}

/// Runs `body(rank, engine)` on a thread for every rank; the failure of one aborts the engines of
/// the others. All engines live until every rank has ended.
template <class Body>
void with_engines(TcpWorld& connections, const World& world, Body body) {
  std::vector<std::unique_ptr<Engine>> engines(world.host_of.size());
  run_as_ranks(world.size(), [&](int rank, RankThreads& rank_threads) {
    std::unique_ptr<Engine>& engine = engines[static_cast<std::size_t>(rank)];
    engine = connect(connections, world, rank);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    body(rank, *engine);
  });
}

/// The same, or where ranks are processes `body(rank, engine)` of this one alone.
template <class Body>
void with_engines(const World& world, Body body) {
  if (world.own_rank >= 0) {
    const std::unique_ptr<Engine> engine = world.make(context_of(world, world.own_rank));
    return body(world.own_rank, *engine);
  }
  TcpWorld connections(world.size());
  with_engines(connections, world, body);
}

/// Calls `body(part, index)` with the engine among `members`, if `rank` is one of them.
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

}  // namespace aiacc
