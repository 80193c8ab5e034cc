#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/control/control_plane.h"
#include "csrc/core/coordinator.h"
#include "csrc/engines/engine.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/fakes/fake_engine.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {

/// Where ranks are: on one host, with an engine that only tests have; every rank on a host of its
/// own; all on one host; on two hosts in turn; on one host that has no memory to share.
enum class Transport { kFake, kTcp, kHost, kHosts, kNoMemory };

/// As ControlPlaneOptions::host_of.
inline std::vector<int> hosts_of(Transport transport, int size) {
  std::vector<int> host_of;
  for (int rank = 0; transport != Transport::kTcp && rank < size; ++rank) {
    host_of.push_back(transport == Transport::kHosts ? rank % 2 : 0);
  }
  return host_of;
}

/// Parameter of suites that run in several worlds.
struct WorldSetting {
  int size;
  Transport transport;
};

/// The parameters of a suite that runs in worlds of these sizes.
inline auto worlds(const std::vector<std::pair<Transport, std::vector<int>>>& sizes_of) {
  std::vector<WorldSetting> settings;
  for (const auto& [transport, sizes] : sizes_of) {
    for (const int size : sizes) {
      settings.push_back({size, transport});
    }
  }
  return testing::ValuesIn(settings);
}

/// "Tcp4"
inline std::string setting_name(const testing::TestParamInfo<WorldSetting>& test) {
  const char* names[] = {"Fake", "Tcp", "Host", "Hosts", "NoMemory"};
  return names[static_cast<int>(test.param.transport)] + std::to_string(test.param.size);
}

/// What `with_coordinators` sets up.
struct CoordinatorWorld {
  int size;
  Transport transport;
  int lanes = 2;
  CoordinatorOptions options;
  /// Makes a rank's engine for tensors on GPUs, if there shall be one.
  std::function<std::unique_ptr<DeviceEngine>(int rank)> gpu;
  /// Hook of the fake engine: rank, lane, bytes.
  std::function<void(int, int, std::size_t)> before;
  /// Makes a rank's engine in place of the usual one, unless it gives null; the context is null
  /// where that is the tests' own.
  std::function<std::unique_ptr<Engine>(int, EngineContext*, std::shared_ptr<FakeHub>)> make_engine;
  double peer_timeout_s = 5;  ///< of the engine

  CoordinatorWorld(int ranks = 2, Transport between = Transport::kFake)
      : size(ranks), transport(between) {
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

/// A suite that runs in several worlds.
class CoordinatorSuite : public testing::TestWithParam<WorldSetting> {
 protected:
  int size() const { return world_.size; }
  /// Of what ranks give that give their number, counted from 1.
  float total() const { return static_cast<float>(size() * (size() + 1)) / 2; }

  CoordinatorWorld world_{GetParam().size, GetParam().transport};
};

/// Calls `body(rank, parts)` on a thread per rank. A rank whose body ends leaves in order, whatever
/// the others still do; one whose body throws ends all.
void with_coordinators(const CoordinatorWorld& world,
                       const std::function<void(int, RankParts&)>& body);

/// Submits `request`; buffers belong to the caller.
inline Handle submit(Coordinator& coordinator, const Request& request, const void* in, void* out) {
  auto operation = coordinator.acquire();
  operation->request = request;
  operation->buffers[0].input = in;
  operation->buffers[0].output = out;
  return coordinator.submit(std::move(operation));
}

/// A tensor that is reduced in place.
inline Handle submit(Coordinator& coordinator, Request request, std::vector<float>& values) {
  request.tensors[0].shape = {static_cast<std::int64_t>(values.size())};
  return submit(coordinator, request, values.data(), values.data());
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

/// Joins and returns the last rank that did.
inline std::int64_t join(Coordinator& coordinator) {
  const Handle handle = submit(coordinator, make_request("", OpKind::kJoin, {}), nullptr, nullptr);
  const std::int64_t last = coordinator.wait(handle)->value;
  coordinator.release(handle);
  return last;
}

/// The error with which the job ends. Every rank waits for something of its own.
inline Status fatal_status(Coordinator& coordinator, const std::string& name) {
  return first_error_of([&] { sum(coordinator, name, 1); });
}

}  // namespace aiacc
