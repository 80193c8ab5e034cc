#pragma once

#include <memory>
#include <vector>

#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {

inline constexpr int kLanes = 3;

inline std::unique_ptr<TcpEngine> connect(TcpWorld& world, int rank) {
  EngineContext context;
  context.rank = rank;
  context.size = world.size();
  context.lanes = kLanes;
  context.connector = &world.connector(rank);
  return std::make_unique<TcpEngine>(context);
}

/// Runs `body(rank, engine)` on every rank; the failure of one aborts the engines of the others.
/// All engines live until every rank has ended.
template <class Body>
void with_engines(int size, Body body) {
  TcpWorld world(size);
  std::vector<std::unique_ptr<TcpEngine>> engines(static_cast<std::size_t>(size));
  run_as_ranks(size, [&](int rank, RankThreads& rank_threads) {
    std::unique_ptr<TcpEngine>& engine = engines[static_cast<std::size_t>(rank)];
    engine = connect(world, rank);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    body(rank, *engine);
  });
}

}  // namespace aiacc
