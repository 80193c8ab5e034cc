// Which lanes the units of a job take, and who waits for them.

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/coordinators.h"
#include "tests/cpp/support/gate.h"

namespace aiacc {
namespace {

constexpr std::int64_t kElements = 20'000;  // more than the express lane takes

/// Lanes of rank 0 but the express one pass the gate, in the order in which they start.
CoordinatorWorld world_with(Gate& gate) {
  CoordinatorWorld world;
  world.lanes = 3;
  world.options.parameters = {0, 1 << 20, 3};
  world.before = [&gate, lanes = world.lanes](int rank, int lane, std::size_t) {
    if (rank == 0 && lane < lanes) {
      gate.pass(lane);
    }
  };
  return world;
}

TEST(CoordinatorLanes, ATensorGoesAroundTheLanesThatAreBusy) {
  Gate gate(false);
  with_coordinators(world_with(gate), [&](int rank, RankParts& parts) {
    std::vector<std::vector<float>> data(3, std::vector<float>(kElements, 1));
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < data.size(); ++i) {
      handles.push_back(submit(*parts.coordinator, make_request(std::to_string(i)), data[i]));
      parts.coordinator->flush();
      if (rank == 0) {
        gate.await(i + 1);
      }
    }
    if (rank == 0) {
      gate.open();
    }
    for (const Handle handle : handles) {
      finish(*parts.coordinator, handle);
    }
  });
  EXPECT_EQ(gate.arrived(), (std::vector<int>{0, 1, 2}));
}

TEST(CoordinatorLanes, WhatIsOverOnAllRanksWeighsNothing) {
  Gate gate(true);
  with_coordinators(world_with(gate), [&](int, RankParts& parts) {
    // The lane of a large tensor that cannot be cut is free for the next.
    for (const std::int64_t elements : {50 * kElements, kElements, kElements}) {
      std::vector<float> data(static_cast<std::size_t>(elements), 1);
      const Request request =
          make_request("x" + std::to_string(elements), OpKind::kAllgather, {elements});
      finish(*parts.coordinator, submit(*parts.coordinator, request, data.data(), nullptr));
      barrier(*parts.coordinator, "all have it");
    }
  });
  EXPECT_EQ(gate.arrived(), (std::vector<int>{0, 0, 0}));
}

/// What any rank proposes takes effect on all: the size of units, and weights of lanes.
TEST(CoordinatorLanes, AnEpochSharesOutTheBytesByItsWeights) {
  Gate gate(true);
  with_coordinators(world_with(gate), [&](int rank, RankParts& parts) {
    if (rank == 1) {
      Parameters slow_middle{0, 1 << 16, 3};
      slow_middle.weights[1] = kFullWeight / 4;
      parts.coordinator->propose(slow_middle);
    }
    barrier(*parts.coordinator, "proposed");  // its round, or an earlier one, has carried it
    std::vector<float> data(9 * (1 << 14), 1);
    finish(*parts.coordinator, submit(*parts.coordinator, make_request("x"), data));
    EXPECT_EQ(parts.coordinator->stats().units, 9U);
  });
  std::vector<int> units(3, 0);
  for (const int lane : gate.arrived()) {
    ++units.at(static_cast<std::size_t>(lane));
  }
  EXPECT_EQ(units, (std::vector<int>{4, 1, 4}));
}

/// A slow lane gets fewer units than the others, by the ranks' own measurement. How many fewer is
/// for the tests of LaneThroughput and better_weights, which know no clock: here a busy machine may
/// hide how slow the lane is, though not that it is slow.
TEST(CoordinatorLanes, ASlowLaneIsRelieved) {
  constexpr int kLanes = 3;
  constexpr int kUnits = 12;
  std::atomic<int> slow_units{0};
  std::atomic<Clock::duration> usual{Clock::duration::zero()};  // as long as a fast lane waits
  CoordinatorWorld world;
  world.lanes = kLanes;
  world.options.parameters = {0, 1 << 16, kLanes};
  world.before = [&](int rank, int lane, std::size_t bytes) {
    if (bytes != 1 << 16) {
      return;
    }
    if (lane == 1) {
      std::this_thread::sleep_for(10 * usual.load());
      slow_units += rank == 0 ? 1 : 0;
    } else {
      const auto start = Clock::now();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      usual = Clock::now() - start;
    }
  };
  with_coordinators(world, [&](int rank, RankParts& parts) {
    std::vector<float> data(kUnits << 14, 0);
    bool relieved = false;
    // The deadline of the ranks ends this if it never happens.
    while (sum(*parts.coordinator, "relieved", relieved ? 1 : 0) == 0) {
      const int before = slow_units.load();
      finish(*parts.coordinator, submit(*parts.coordinator, make_request("x"), data));
      relieved = rank == 0 && slow_units.load() - before < kUnits / kLanes;
    }
  });
}

constexpr std::int64_t kMany = 5 * kElements;  // more than a caller moves itself

/// Rounds are those that a wait begins, and waits look around 32 times a second.
CoordinatorWorld waiting_world(Gate& gate) {
  CoordinatorWorld world = world_with(gate);
  world.options.parameters.unit_bytes = 1 << 19;  // so that nothing shares the unit of kMany
  world.options.linger = world.options.patience = std::chrono::hours(1);
  world.options.peer_timeout_s = 1;
  return world;
}

/// It used to run a round for what else is queued, which may have to wait for other ranks.
TEST(CoordinatorWaits, EndWithTheirOwnOperation) {
  Gate gate(false);
  std::promise<void> returned;
  with_coordinators(waiting_world(gate), [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::vector<float> data(kMany, 1);
    const Handle x = submit(coordinator, make_request("x"), data);
    coordinator.flush();
    if (rank == 0) {
      gate.await(1);
      float value = 1;
      const Handle y = submit(coordinator, make_request("y", {1}), &value, &value);
      coordinator.wait(x, [&] { gate.open(); });
      returned.set_value();
      finish(coordinator, y);
    } else {
      finish(coordinator, x);
      returned.get_future().wait();
      sum(coordinator, "y", 1);
    }
  });
}

/// A waiting thread runs no unit that may take long, nor many, be it of its own operation, for it
/// has signals to look after, or of another one.
TEST(CoordinatorWaits, AreNotHeldByALane) {
  for (const std::uint64_t unit_bytes : {1U << 16, 1U << 19, 0U}) {
    Gate gate(false);
    CoordinatorWorld world = waiting_world(gate);
    const bool is_its_own = unit_bytes > 0;
    if (is_its_own) {
      world.options.parameters.unit_bytes = unit_bytes;
    }
    with_coordinators(world, [&](int rank, RankParts& parts) {
      Coordinator& coordinator = *parts.coordinator;
      std::vector<float> data(kMany, 1);
      float value = 1;
      const Handle held = submit(coordinator, make_request("held"), data);
      const Handle other = submit(coordinator, make_request("other", {1}), &value, &value);
      if (rank == 0 && is_its_own) {
        coordinator.wait(held, [&] { gate.open(); });
      } else if (rank == 0) {
        coordinator.wait(other);
        gate.open();
      }
      finish(coordinator, held);
      finish(coordinator, other);
    });
  }
}

/// Two thread switches would take longer.
TEST(CoordinatorWaits, MoveWhatIsShortThemselves) {
  CoordinatorWorld world(1);
  world.options.linger = std::chrono::hours(1);
  world.options.parameters.unit_bytes = 1 << 20;
  std::thread::id mover;
  world.before = [&](int, int, std::size_t) { mover = std::this_thread::get_id(); };
  with_coordinators(world, [&](int, RankParts& parts) {
    for (const std::int64_t elements : {std::int64_t{1}, kElements}) {
      std::vector<float> data(static_cast<std::size_t>(elements), 1);
      finish(*parts.coordinator, submit(*parts.coordinator, make_request("x"), data));
      EXPECT_EQ(mover, std::this_thread::get_id()) << elements << " elements";
    }
  });
}

}  // namespace
}  // namespace aiacc
