#include "csrc/core/coordinator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

class CoordinatorTest : public testing::TestWithParam<WorldSetting> {
 protected:
  CoordinatorTest() {
    world_.size = GetParam().size;
    world_.transport = GetParam().transport;
  }
  int size() const { return world_.size; }
  float total() const { return static_cast<float>(size() * (size() + 1)) / 2; }

  CoordinatorWorld world_;
};

TEST_P(CoordinatorTest, OneSumAfterAnother) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    for (int i = 0; i < 200; ++i) {
      const std::string name = "x" + std::to_string(i % 3);
      ASSERT_EQ(sum(*parts.coordinator, name, static_cast<float>(rank + 1)), total());
    }
    const CoordinatorStats stats = parts.coordinator->stats();
    EXPECT_EQ(stats.tensors, 200U);
    EXPECT_EQ(stats.units, 200U);
    EXPECT_EQ(stats.data_bytes, 800U);
  });
}

TEST_P(CoordinatorTest, WhatNobodyWaitsForIsDoneAfterTheLinger) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 10; ++i) {
      float value = static_cast<float>(rank + 1);
      const Handle handle = submit(coordinator, make_request("x", {1}), &value, &value);
      while (!coordinator.poll(handle)) {
        std::this_thread::yield();
      }
      finish(coordinator, handle);
      ASSERT_EQ(value, total());
    }
  });
}

TEST_P(CoordinatorTest, AFlushDoesNotWaitForTheLinger) {
  world_.options.linger = std::chrono::hours(1);
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 50; ++i) {
      float value = static_cast<float>(rank + 1);
      const Handle handle = submit(coordinator, make_request("x", {1}), &value, &value);
      coordinator.flush();
      while (!coordinator.poll(handle)) {
        std::this_thread::yield();
      }
      finish(coordinator, handle);
      ASSERT_EQ(value, total());
    }
  });
}

TEST(CoordinatorAlone, AUnitsWorthDoesNotWaitForTheLinger) {
  CoordinatorWorld world;
  world.size = 1;
  world.options.linger = std::chrono::hours(1);
  world.options.parameters.unit_bytes = 4000;
  with_coordinators(world, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 50; ++i) {
      std::vector<float> a(500, 1);
      std::vector<float> b(500, 2);
      const Handle first = submit(coordinator, make_request("a", {500}), a.data(), a.data());
      EXPECT_FALSE(coordinator.poll(first)) << "half a unit is not worth a round";
      const Handle second = submit(coordinator, make_request("b", {500}), b.data(), b.data());
      while (!coordinator.poll(first) || !coordinator.poll(second)) {
        std::this_thread::yield();
      }
      finish(coordinator, first);
      finish(coordinator, second);
    }
  });
}

/// Rank 0 waits for `a` first, the others give theirs only when `b` is done.
TEST_P(CoordinatorTest, RanksMayWaitInDifferentOrders) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 30; ++i) {
      float a = 1;
      float b = 2;
      const Handle of_b = submit(coordinator, make_request("b", {1}), &b, &b);
      if (rank != 0) {
        finish(coordinator, of_b);
      }
      const Handle of_a = submit(coordinator, make_request("a", {1}), &a, &a);
      finish(coordinator, of_a);
      if (rank == 0) {
        finish(coordinator, of_b);
      }
      ASSERT_EQ(a + b, 3.0F * static_cast<float>(size()));
    }
  });
}

TEST_P(CoordinatorTest, ThreadsOfOneRankWaitForOperationsThatOthersGiveInTurn) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 30; ++i) {
      if (rank == 0) {
        std::vector<std::thread> threads;
        for (const char* name : {"a", "b", "c"}) {
          threads.emplace_back([&coordinator, name] { sum(coordinator, name, 1); });
        }
        for (std::thread& thread : threads) {
          thread.join();
        }
      } else {
        for (const char* name : {"c", "a", "b"}) {
          sum(coordinator, name, 1);
        }
      }
    }
  });
}

TEST_P(CoordinatorTest, SubmittersFlushersAndWaitersMissNoWakeUp) {
  with_coordinators(world_, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        const std::string name = "t" + std::to_string(t);
        for (int i = 0; i < 150; ++i) {
          float value = 1;
          const Handle handle = submit(coordinator, make_request(name, {1}), &value, &value);
          if ((i + t) % 3 == 0) {
            coordinator.flush();
            while (!coordinator.poll(handle)) {
              std::this_thread::yield();
            }
          }
          finish(coordinator, handle);
          EXPECT_EQ(value, static_cast<float>(size()));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

TEST_P(CoordinatorTest, ProposingDoesNotWaitForTheProgressThread) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (std::uint64_t i = 0; i < 20; ++i) {
      if (rank == 0) {
        std::thread waiter([&] { sum(coordinator, "a", 1); });
        coordinator.propose({0, 1000 + i, 1 + static_cast<std::uint32_t>(i % 2)});
        sum(coordinator, "b", 1);  // the others wait for it before they give `a`
        waiter.join();
      } else {
        sum(coordinator, "b", 1);
        sum(coordinator, "a", 1);
      }
    }
  });
}

TEST_P(CoordinatorTest, AProposalTakesEffectOnAllRanks) {
  world_.options.parameters.unit_bytes = 1 << 20;
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::vector<float> data(1000, 1);
    const auto units_of_one = [&] {
      const auto before = coordinator.stats().units;
      finish(coordinator, submit(coordinator, make_request("x", {1000}), data.data(), data.data()));
      return coordinator.stats().units - before;
    };
    EXPECT_EQ(units_of_one(), 1U);
    if (rank == size() - 1) {
      coordinator.propose({0, 1024, 1});
    }
    barrier(coordinator, "proposed");  // its round, or an earlier one, has carried the proposal
    EXPECT_EQ(units_of_one(), 4U);
  });
}

TEST_P(CoordinatorTest, ProposalsMidFlightHarmNothing) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::atomic<bool> stop{false};
    std::thread tuner([&] {
      for (std::uint64_t i = 0; !stop.load(); ++i) {
        coordinator.propose({0, 256 + i % 5000, 1 + static_cast<std::uint32_t>(i % 2)});
        std::this_thread::yield();
      }
    });
    for (int i = 0; i < 30; ++i) {
      std::vector<std::vector<float>> tensors(5, std::vector<float>(700));
      std::vector<Handle> handles;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        std::fill(tensors[t].begin(), tensors[t].end(), static_cast<float>(rank + 1));
        const Request request = make_request(std::to_string(t), {700});
        handles.push_back(submit(coordinator, request, tensors[t].data(), tensors[t].data()));
      }
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        finish(coordinator, handles[t]);
        EXPECT_EQ(std::count(tensors[t].begin(), tensors[t].end(), total()), 700);
      }
    }
    stop.store(true);
    tuner.join();
  });
}

TEST_P(CoordinatorTest, BadRequestsAndParametersAreRefusedWhereTheyAreMade) {
  with_coordinators(world_, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const Request bad[] = {
        make_request(std::string(kMaxNameBytes + 1, 'x'), {1}),
        make_request("dimensions", std::vector<std::int64_t>(kMaxDimensions + 1, 1)),
        make_request("scalar", OpKind::kAllgather, {}),
        [&] {
          Request request = make_request("root", OpKind::kBroadcast, {1});
          request.root = size();
          return request;
        }(),
    };
    float value = 0;
    for (const Request& request : bad) {
      EXPECT_EQ(status_of([&] { submit(coordinator, request, &value, &value); }).code(),
                Code::kInvalidArgument);
    }
    Request unnamed = make_request("", OpKind::kBroadcast, {1});
    unnamed.root = size();
    const Status refused = status_of([&] { submit(coordinator, unnamed, &value, &value); });
    EXPECT_NE(refused.message().find("[submit] an unnamed broadcast: root_rank"), std::string::npos)
        << refused.message();
    for (const Parameters& parameters : {Parameters{0, 0, 1}, {0, 1, 0}, {0, 1, 3}}) {
      EXPECT_EQ(status_of([&] { coordinator.propose(parameters); }).code(), Code::kInvalidArgument);
    }
    sum(coordinator, "x", 1);
  });
}

TEST_P(CoordinatorTest, ANameInFlightIsRefusedAndTheFirstGoesOn) {
  world_.options.linger = std::chrono::hours(1);
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    float value = 1;
    if (rank != 0) {
      barrier(coordinator, "rank 0 has tried");
    }
    const Handle handle = submit(coordinator, make_request("x", {1}), &value, &value);
    if (rank == 0) {
      float other = 1;
      const Status status =
          status_of([&] { submit(coordinator, make_request("x", {1}), &other, &other); });
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_NE(status.message().find("'x' is already in flight"), std::string::npos);
      barrier(coordinator, "rank 0 has tried");
    }
    finish(coordinator, handle);
    EXPECT_EQ(value, static_cast<float>(size()));
  });
}

TEST_P(CoordinatorTest, SeveralThreadsMayWaitForOneHandle) {
  with_coordinators(world_, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 20; ++i) {
      float value = 1;
      const Handle handle = submit(coordinator, make_request("x", {1}), &value, &value);
      std::atomic<int> finished{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
          const Status status = status_of([&] { coordinator.wait(handle); });
          EXPECT_TRUE(status.ok()) << status.message();
          finished.fetch_add(1);
        });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      EXPECT_EQ(finished.load(), 3);
      coordinator.release(handle);
      EXPECT_EQ(status_of([&] { coordinator.wait(handle); }).code(), Code::kInvalidArgument);
    }
  });
}

TEST_P(CoordinatorTest, AnIdleJobExchangesNothing) {
  with_coordinators(world_, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    sum(coordinator, "x", 1);
    barrier(coordinator, "b");
    const auto rounds = parts.plane->rounds();
    const auto bytes = parts.plane->bytes_sent();
    // There is no event for something that does not happen.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(parts.plane->rounds(), rounds);
    EXPECT_EQ(parts.plane->bytes_sent(), bytes);
    // Nobody leaves before all have looked: a farewell is traffic.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
}

/// The rank that is late does not take part in rounds that can only be in vain.
TEST(CoordinatorRounds, AreNoMoreThanTensorsHoweverLateARankIs) {
  CoordinatorWorld world;
  world.transport = Transport::kTcp;
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
        while (early[i] == nullptr || early[i].load()->bytes_sent() == sent[i]) {
          std::this_thread::yield();
        }
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
        const Request request = make_request("t" + std::to_string(t), {10});
        handles.push_back(submit(coordinator, request, tensors[t].data(), tensors[t].data()));
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

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorTest,
                         testing::Values(WorldSetting{1, Transport::kInProcess},
                                         WorldSetting{2, Transport::kInProcess},
                                         WorldSetting{4, Transport::kInProcess},
                                         WorldSetting{7, Transport::kInProcess},
                                         WorldSetting{2, Transport::kTcp},
                                         WorldSetting{3, Transport::kTcp},
                                         WorldSetting{4, Transport::kTcp}),
                         setting_name);

}  // namespace
}  // namespace aiacc
