#include "tests/cpp/support/coordinators.h"

#include "csrc/base/log.h"
#include "csrc/control/control_plane.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {

void with_coordinators(const CoordinatorWorld& world,
                       const std::function<void(int, RankParts&)>& body) {
  configure_log(LogLevel::kFatal, -1);  // failures are what these tests are about
  const auto fake = std::make_shared<FakeHub>(world.size, world.lanes);
  const bool is_fake = world.transport == Transport::kFake;
  TcpWorld tcp(world.size);
  run_as_ranks(world.size, [&](int rank, RankThreads& rank_threads) {
    RankParts parts;
    parts.timeline = std::make_unique<Timeline>(rank);
    ControlPlaneOptions options;
    options.peer_timeout_s = 20;
    options.host_of = hosts_of(world.transport, world.size);
    parts.plane = std::make_unique<ControlPlane>(&tcp.connector(rank), options);
    EngineContext context;
    context.rank = rank;
    context.size = world.size;
    context.lanes = world.lanes;
    context.connector = &tcp.connector(rank);
    context.peer_timeout_s = world.peer_timeout_s;
    if (world.make_engine) {
      parts.engine = world.make_engine(rank, is_fake ? nullptr : &context, fake);
    }
    if (parts.engine == nullptr && is_fake) {
      FakeEngine::Before before;
      if (world.before) {
        before = [&, rank](int lane, std::size_t bytes) { world.before(rank, lane, bytes); };
      }
      parts.engine = std::make_unique<FakeEngine>(fake, rank, before);
    } else if (parts.engine == nullptr) {
      parts.engine = std::make_unique<TcpEngine>(context);
    }
    parts.gpu = world.gpu ? world.gpu(rank) : nullptr;
    parts.coordinator = std::make_unique<Coordinator>(*parts.plane,
                                                      *parts.engine,
                                                      *parts.timeline,
                                                      world.options,
                                                      parts.gpu.get(),
                                                      is_fake ? nullptr : &tcp.connector(rank));
    {
      const auto guard =
          rank_threads.on_failure([&](const Status&) { parts.coordinator->shutdown(); });
      body(rank, parts);
    }
    parts.coordinator.reset();
    parts.timeline.reset();
    parts.gpu.reset();
    parts.engine.reset();
    parts.plane.reset();
  });
}

}  // namespace aiacc
