#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/log.h"
#include "csrc/control/in_process/in_process_plane.h"
#include "csrc/control/tcp/tcp_plane.h"
#include "csrc/core/coordinator.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/support/fakes/fake_engine.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/requests.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {

enum class Transport { kInProcess, kTcp };

/// Parameter of suites that run in several worlds.
struct WorldSetting {
  int size;
  Transport transport;
};

/// "Tcp4"
inline std::string setting_name(const testing::TestParamInfo<WorldSetting>& test) {
  return (test.param.transport == Transport::kTcp ? "Tcp" : "InProcess") +
         std::to_string(test.param.size);
}

/// What `with_coordinators` sets up.
struct CoordinatorWorld {
  int size = 2;
  Transport transport = Transport::kInProcess;
  int lanes = 2;
  CoordinatorOptions options;
  /// Makes a rank's engine for tensors on GPUs, if there shall be one.
  std::function<std::unique_ptr<DeviceEngine>(int rank)> gpu;
  /// Hook of the fake engine: rank, lane, bytes.
  std::function<void(int, int, std::size_t)> before;
  /// Makes a rank's engine in place of the usual one, unless it gives null; the context is null
  /// between threads.
  std::function<std::unique_ptr<Engine>(int, EngineContext*, std::shared_ptr<FakeHub>)> make_engine;
  double peer_timeout_s = 5;  ///< of the engine

  CoordinatorWorld() {
    options.parameters = {0, 4096, 2};
    options.parameters.gpu_unit_bytes = 4096;
    // Whoever sleeps through a wake-up looks around once in 250 s: that is a hang, not a delay.
    options.peer_timeout_s = 1000;
    options.stall_warn_s = 0;
  }
};

/// One rank's parts, in the order in which a session makes and ends them.
struct RankParts {
  std::unique_ptr<ControlPlane> plane;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<DeviceEngine> gpu;
  std::unique_ptr<Timeline> timeline;
  std::unique_ptr<Coordinator> coordinator;
};

/// Calls `body(rank, parts)` on a thread per rank. A rank whose body ends leaves in order, whatever
/// the others still do; one whose body throws ends all.
template <class Body>
void with_coordinators(const CoordinatorWorld& world, Body body) {
  configure_log(LogLevel::kFatal, -1);  // failures are what these tests are about
  const auto hub = std::make_shared<InProcessHub>(world.size);
  const auto fake = std::make_shared<FakeHub>(world.size, world.lanes);
  std::unique_ptr<TcpWorld> tcp;
  if (world.transport == Transport::kTcp) {
    tcp = std::make_unique<TcpWorld>(world.size);
  }
  run_as_ranks(world.size, [&](int rank, RankThreads& rank_threads) {
    RankParts parts;
    parts.timeline = std::make_unique<Timeline>(rank);
    if (tcp == nullptr) {
      FakeEngine::Before before;
      if (world.before) {
        before = [&, rank](int lane, std::size_t bytes) { world.before(rank, lane, bytes); };
      }
      parts.plane = std::make_unique<InProcessPlane>(hub, rank);
      parts.engine = world.make_engine ? world.make_engine(rank, nullptr, fake) : nullptr;
      if (parts.engine == nullptr) {
        parts.engine = std::make_unique<FakeEngine>(fake, rank, before);
      }
    } else {
      parts.plane = std::make_unique<TcpPlane>(tcp->connector(rank), 20, 50);
      EngineContext context;
      context.rank = rank;
      context.size = world.size;
      context.lanes = world.lanes;
      context.connector = &tcp->connector(rank);
      context.peer_timeout_s = world.peer_timeout_s;
      parts.engine = world.make_engine ? world.make_engine(rank, &context, fake) : nullptr;
      if (parts.engine == nullptr) {
        parts.engine = std::make_unique<TcpEngine>(context);
      }
    }
    parts.gpu = world.gpu ? world.gpu(rank) : nullptr;
    parts.coordinator = std::make_unique<Coordinator>(*parts.plane,
                                                      *parts.engine,
                                                      *parts.timeline,
                                                      world.options,
                                                      parts.gpu.get(),
                                                      tcp ? &tcp->connector(rank) : nullptr);
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

/// Submits `request`; buffers belong to the caller.
inline Handle submit(Coordinator& coordinator, const Request& request, const void* in, void* out) {
  auto operation = coordinator.acquire();
  operation->request = request;
  operation->input = in;
  operation->output = out;
  return coordinator.submit(std::move(operation));
}

/// Waits and forgets; throws the operation's error.
inline void finish(Coordinator& coordinator, Handle handle) {
  coordinator.wait(handle);
  coordinator.release(handle);
}

/// A sum of one float over all ranks.
inline float sum(Coordinator& coordinator, const std::string& name, float value) {
  finish(coordinator, submit(coordinator, make_request(name, {1}), &value, &value));
  return value;
}

inline void barrier(Coordinator& coordinator, const std::string& name) {
  finish(coordinator,
         submit(coordinator, make_request(name, OpKind::kBarrier, {}), nullptr, nullptr));
}

/// The error of `call`, or Status() if there was none.
template <class Call>
Status status_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

}  // namespace aiacc
