#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "csrc/engines/members.h"
#include "csrc/engines/shm/shm_engine.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {

inline constexpr int kShmLanes = 2;

inline EngineContext shm_context(TcpWorld& world, int rank, double connect_timeout_s = 20) {
  EngineContext context;
  context.rank = rank;
  context.size = world.size();
  context.host_of.assign(static_cast<std::size_t>(world.size()), 0);
  context.lanes = kShmLanes;
  context.connect_timeout_s = connect_timeout_s;
  context.connector = &world.connector(rank);
  return context;
}

/// Runs `body(rank, engine)` on every rank of a host; the failure of one aborts the engines of the
/// others. All engines live until every rank has ended.
template <class Body>
void with_shm_engines(int size, Body body, std::size_t slot_bytes = 0) {
  TcpWorld world(size);
  std::vector<std::unique_ptr<ShmEngine>> engines(static_cast<std::size_t>(size));
  run_as_ranks(size, [&](int rank, RankThreads& rank_threads) {
    std::unique_ptr<ShmEngine>& engine = engines[static_cast<std::size_t>(rank)];
    engine = std::make_unique<ShmEngine>(shm_context(world, rank),
                                         ShmOptions{all_ranks(size), 0, slot_bytes});
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    body(rank, *engine);
  });
}

}  // namespace aiacc
