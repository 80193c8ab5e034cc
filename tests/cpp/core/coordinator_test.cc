#include "csrc/core/coordinator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/scale.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/support/allocations.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

class CoordinatorTest : public CoordinatorSuite {};

TEST_P(CoordinatorTest, WhatNobodyWaitsForIsDoneAfterTheLingerOrAFlush) {
  for (const bool flushes : {false, true}) {
    if (flushes) {
      world_.options.linger = std::chrono::hours(1);
    }
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      Coordinator& coordinator = *parts.coordinator;
      for (int i = 0; i < (flushes ? 50 : 10); ++i) {
        float value = static_cast<float>(rank + 1);
        const Handle handle = submit(coordinator, make_request("x", {1}), &value, &value);
        if (flushes) {
          coordinator.flush();
        }
        yield_until([&] { return coordinator.poll(handle); });
        finish(coordinator, handle);
        ASSERT_EQ(value, total());
      }
    });
  }
}

TEST(CoordinatorAlone, AUnitsWorthDoesNotWaitForTheLinger) {
  CoordinatorWorld world(1);
  world.options.linger = std::chrono::hours(1);
  world.options.parameters.unit_bytes = 4000;
  with_coordinators(world, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 50; ++i) {
      std::vector<float> a(500, 1);
      std::vector<float> b(500, 2);
      const Handle first = submit(coordinator, make_request("a"), a);
      EXPECT_FALSE(coordinator.poll(first)) << "half a unit is not worth a round";
      const Handle second = submit(coordinator, make_request("b"), b);
      yield_until([&] { return coordinator.poll(first) && coordinator.poll(second); });
      finish(coordinator, first);
      finish(coordinator, second);
    }
  });
}

/// Heartbeats go on for a while (heartbeat_test.cc): bytes would count them.
TEST_P(CoordinatorTest, AnIdleJobHasNoRounds) {
  with_coordinators(world_, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    sum(coordinator, "x", 1);
    barrier(coordinator, "b");
    const auto rounds = parts.plane->rounds();
    // There is no event for something that does not happen.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(parts.plane->rounds(), rounds);
    // Nobody leaves before all have looked.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
}

/// The rank that is late does not take part in rounds that can only be in vain.
TEST(CoordinatorRounds, AreNoMoreThanTensorsHoweverLateARankIs) {
  CoordinatorWorld world(2, Transport::kTcp);
  world.options.patience = std::chrono::hours(1);
  constexpr std::size_t kTensors = 50;
  std::vector<std::atomic<ControlPlane*>> early(kTensors);
  std::vector<std::uint64_t> sent(kTensors);
  with_coordinators(world, [&](int rank, RankParts& parts) {
    barrier(*parts.coordinator, "begin");
    const std::uint64_t before = parts.plane->rounds();
    for (std::size_t i = 0; i < kTensors; ++i) {
      if (rank == static_cast<int>(i % 2)) {
        sent[i] = parts.plane->bytes_sent();
        early[i] = parts.plane.get();
      } else {
        yield_until([&] { return early[i] != nullptr; });
        yield_until([&] { return early[i].load()->bytes_sent() != sent[i]; });
      }
      ASSERT_EQ(sum(*parts.coordinator, "x", 1), 2);
      barrier(*parts.coordinator, "next");
    }
    EXPECT_LE(parts.plane->rounds() - before, 2 * kTensors);
    barrier(*parts.coordinator, "counted");
  });
}

TEST_P(CoordinatorTest, ManySmallTensorsShareUnitsAndRounds) {
  world_.options.parameters.unit_bytes = 1 << 20;
  world_.options.linger = std::chrono::hours(1);
  with_coordinators(world_, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::vector<std::vector<float>> tensors(100, std::vector<float>(10, 1));
    for (int i = 0; i < 2; ++i) {
      const auto before = coordinator.stats().units;
      std::vector<Handle> handles;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        const Request request = make_request("t" + std::to_string(t));
        handles.push_back(submit(coordinator, request, tensors[t]));
      }
      barrier(coordinator, "all submitted");
      for (const Handle handle : handles) {
        finish(coordinator, handle);
      }
      // Ranks that are half through when the first round comes make it a few more.
      EXPECT_LT(coordinator.stats().units - before, 50U);
    }
  });
}

TEST(CoordinatorAverages, OfIntegersAreExactWhenTheyCanBe) {
  for (int size = 1; size <= 64; ++size) {
    const double factor = average_factor(DataType::kInt64, size, 3.0);
    for (std::int64_t average = -1000; average <= 1000; ++average) {
      const std::int64_t sum = average * size;
      std::int64_t tripled = 0;
      scale(&tripled, &sum, 1, DataType::kInt64, factor);
      ASSERT_EQ(3 * average, tripled) << size;
    }
  }
  EXPECT_EQ(average_factor(DataType::kFloat32, 4, 1.0), 0.25);
}

/// What two ranks give sums up to the largest number of the type.
TEST(CoordinatorAverages, OfIntegersHoldUpToTheirLimits) {
  with_coordinators({}, [](int rank, RankParts& parts) {
    for (const DataType dtype : all_dtypes()) {
      visit_dtype(dtype, [&](auto element) {
        using T = decltype(element);
        if constexpr (std::is_integral_v<T>) {
          const T half = std::numeric_limits<T>::max() / 2;
          const T least = std::numeric_limits<T>::min() / 2;
          const auto below = [half](int steps) { return static_cast<T>(half - steps); };
          std::vector<T> values = {half, below(rank), least, below(3 * rank)};
          Request request = make_request(name_of(dtype));
          request.tensors[0].dtype = dtype;
          request.op = ReduceOp::kAverage;
          finish(*parts.coordinator,
                 submit(*parts.coordinator, request, values.data(), values.data()));
          EXPECT_EQ((std::vector<T>{half, below(1), least, below(2)}), values) << name_of(dtype);
        }
      });
    }
  });
}

/// Orthogonal tensors add up, equal ones stay: each tensor of a unit for itself, and whole.
TEST_P(CoordinatorTest, AdaptiveSumsWeighWholeTensorsOfAGroupThatCountsAsOne) {
  if ((size() & (size() - 1)) != 0) {
    GTEST_SKIP() << "refused: see coordinator_refusals_test.cc";
  }
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const auto count = static_cast<std::size_t>(size());
    std::vector<float> orthogonal(count, 0);
    orthogonal[static_cast<std::size_t>(rank)] = 3;
    std::vector<double> equal(3000, 2);  // several units, were it cut
    auto operation = coordinator.acquire();
    operation->request = make_request("a", {size()});
    operation->request.op = ReduceOp::kAdasum;
    operation->request.postscale = 0.5;
    operation->request.tensors = {operation->request.tensors[0], {DataType::kFloat64, {3000}}};
    operation->buffers = {{orthogonal.data(), orthogonal.data(), {}, {}, {}},
                          {equal.data(), equal.data(), {}, {}, {}}};
    finish(coordinator, coordinator.submit(std::move(operation)));
    EXPECT_EQ(coordinator.stats().tensors, 1U);
    EXPECT_EQ(coordinator.stats().data_bytes, 4 * count + 8 * equal.size());
    barrier(coordinator, "another one");
    EXPECT_EQ(coordinator.stats().tensors, 2U);
    for (const float value : orthogonal) {
      EXPECT_FLOAT_EQ(value, 1.5F);
    }
    for (const double value : equal) {
      ASSERT_DOUBLE_EQ(value, 1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorTest,
                         worlds({{Transport::kFake, {1, 2, 4, 7}},
                                 {Transport::kTcp, {2}},
                                 {Transport::kHost, {3}},
                                 {Transport::kHosts, {4}}}),
                         setting_name);

constexpr int kSteps = 200;

/// Tensors as a model has them: some share a unit, some are cut into several, of two types.
std::vector<Request> gradients() {
  std::vector<Request> requests;
  for (const std::int64_t extent : {10, 7000, 300, 1, 300, 2500, 12, 900}) {
    const std::string name =
        "gradient.of.a.layer.with.a.long.name." + std::to_string(requests.size());
    requests.push_back(make_request(name, {extent}));
    requests.push_back(make_request(name + ".double", {extent / 2 + 1}));
    requests.back().tensors[0].dtype = DataType::kFloat64;
  }
  return requests;
}

class SteadyState : public testing::TestWithParam<int> {};

TEST_P(SteadyState, AStepAllocatesNothing) {
  CoordinatorWorld world(GetParam(), Transport::kHosts);
  with_coordinators(world, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const std::vector<Request> requests = gradients();
    std::vector<std::vector<std::byte>> memory;
    for (const Request& request : requests) {
      memory.emplace_back(request.tensors[0].bytes());
    }
    std::vector<Handle> handles(requests.size());
    std::size_t fewest = allocations.load();
    for (int step = 0; step < kSteps; ++step) {
      const std::size_t before = allocations.load();
      for (std::size_t i = 0; i < requests.size(); ++i) {
        handles[i] = submit(coordinator, requests[i], memory[i].data(), memory[i].data());
      }
      for (const Handle handle : handles) {
        finish(coordinator, handle);
      }
      fewest = std::min(fewest, allocations.load() - before);
    }
    // Of all ranks together. A queue that gets longer than ever before grows: not in every step.
    EXPECT_EQ(0U, fewest) << "rank " << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SteadyState, testing::Values(1, 2, 3));

}  // namespace
}  // namespace aiacc
