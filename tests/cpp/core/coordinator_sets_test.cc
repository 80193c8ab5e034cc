#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

Request request_in(std::uint32_t process_set, const std::string& name, std::int64_t count) {
  Request request = make_request(name, {count});
  request.process_set = process_set;
  return request;
}

class CoordinatorSetsTest : public testing::TestWithParam<WorldSetting> {
 protected:
  CoordinatorSetsTest() {
    world_.size = GetParam().size;
    world_.transport = GetParam().transport;
  }
  int size() const { return world_.size; }

  CoordinatorWorld world_;
};

TEST_P(CoordinatorSetsTest, MembersReduceAmongThemselves) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const std::uint32_t first = coordinator.add_process_set({0});
    const std::uint32_t others = [&] {
      std::vector<int> ranks;
      for (int r = size() - 1; r > 0; --r) {
        ranks.push_back(r);
      }
      return coordinator.add_process_set(ranks);
    }();
    EXPECT_NE(first, others);
    EXPECT_EQ(coordinator.communicators().ids(), (std::vector<std::uint32_t>{0, first, others}));
    const std::uint32_t mine = rank == 0 ? first : others;
    for (int i = 0; i < 20; ++i) {
      // One name in two sets, and in the global one at the same time.
      std::vector<float> in_set(3000, static_cast<float>(rank + 1));
      float global = 1;
      const Handle set_handle =
          submit(coordinator, request_in(mine, "x", 3000), in_set.data(), in_set.data());
      const Handle handle = submit(coordinator, make_request("x", {1}), &global, &global);
      finish(coordinator, handle);
      finish(coordinator, set_handle);
      const float expected =
          rank == 0 ? 1.0F : static_cast<float>(size() * (size() + 1)) / 2 - 1.0F;
      EXPECT_EQ(std::count(in_set.begin(), in_set.end(), expected), 3000);
      EXPECT_EQ(global, static_cast<float>(size()));
    }
    EXPECT_TRUE(coordinator.remove_process_set(others));
    EXPECT_FALSE(coordinator.remove_process_set(others));
    EXPECT_FALSE(coordinator.remove_process_set(0));
    EXPECT_EQ(coordinator.communicators().ids(), (std::vector<std::uint32_t>{0, first}));
  });
}

TEST_P(CoordinatorSetsTest, RootsAreGlobalRanksAndAveragesAreOfTheSet) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const int last = size() - 1;
    const std::uint32_t id = coordinator.add_process_set({1, last});
    if (rank == 1 || rank == last) {
      float value = static_cast<float>(rank);
      Request request = request_in(id, "b", 1);
      request.kind = OpKind::kBroadcast;
      request.root = last;
      finish(coordinator, submit(coordinator, request, &value, &value));
      EXPECT_EQ(value, static_cast<float>(last));
      request = request_in(id, "a", 1);
      request.op = ReduceOp::kAverage;
      value = static_cast<float>(rank);
      finish(coordinator, submit(coordinator, request, &value, &value));
      EXPECT_EQ(value, static_cast<float>(1 + last) / 2);
      request = request_in(id, "root", 1);
      request.kind = OpKind::kBroadcast;
      request.root = 0;
      EXPECT_EQ(status_of([&] { submit(coordinator, request, &value, &value); }).code(),
                Code::kInvalidArgument);
    }
    barrier(coordinator, "done");
  });
}

TEST_P(CoordinatorSetsTest, OutsidersAndUnknownSetsAreRefused) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const std::uint32_t id = coordinator.add_process_set({1});
    float value = 1;
    if (rank == 0) {
      const Status status =
          status_of([&] { submit(coordinator, request_in(id, "x", 1), &value, &value); });
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      for (const std::string& part : {std::string("rank 0"), "process set " + std::to_string(id)}) {
        EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
      }
    }
    EXPECT_EQ(
        status_of([&] { submit(coordinator, request_in(id + 1, "x", 1), &value, &value); }).code(),
        Code::kInvalidArgument);
    for (const std::vector<int>& ranks : {std::vector<int>{}, {-1}, {0, size()}, {1, 1}}) {
      EXPECT_EQ(status_of([&] { coordinator.add_process_set(ranks); }).code(),
                Code::kInvalidArgument);
    }
    const Status again = status_of([&] { coordinator.add_process_set({1}); });
    EXPECT_EQ(again.code(), Code::kInvalidArgument);
    EXPECT_NE(again.message().find("process set " + std::to_string(id)), std::string::npos);
    sum(coordinator, "x", 1);
  });
}

TEST_P(CoordinatorSetsTest, WhatNotAllMembersGaveFailsWhenTheSetIsRemoved) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 5; ++i) {
      const std::uint32_t id = coordinator.add_process_set({0, 2});
      float value = 1;
      Handle handle = 0;
      if (rank == 2) {
        handle = submit(coordinator, request_in(id, "lonely", 1), &value, &value);
      }
      EXPECT_TRUE(coordinator.remove_process_set(id));
      if (rank == 2) {
        EXPECT_EQ(status_of([&] { coordinator.wait(handle); }).code(), Code::kMismatch);
      }
      EXPECT_EQ(sum(coordinator, "afterwards", 1), static_cast<float>(size()));
    }
  });
}

TEST_P(CoordinatorSetsTest, WhatAllMembersGaveIsDoneThoughTheSetIsRemoved) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 20; ++i) {
      const std::uint32_t id = coordinator.add_process_set({0, 2});
      std::vector<float> data(20000, 1);
      Handle handle = 0;
      if (rank == 0 || rank == 2) {
        handle = submit(coordinator, request_in(id, "x", 20000), data.data(), data.data());
      }
      EXPECT_TRUE(coordinator.remove_process_set(id));
      if (handle != 0) {
        finish(coordinator, handle);
        EXPECT_EQ(std::count(data.begin(), data.end(), 2.0F), 20000);
      }
    }
  });
}

/// Overlapping sets, many tensors each, submitted in an order of every rank's own, while sets come
/// and go.
TEST_P(CoordinatorSetsTest, OverlappingSetsDoNotWaitForEachOtherCrosswise) {
  world_.options.parameters.unit_bytes = 1024;
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::mt19937 same(7);
    std::mt19937 own(static_cast<std::uint32_t>(rank));
    for (int i = 0; i < 6; ++i) {
      struct Set {
        std::uint32_t id;
        std::vector<int> ranks;
      };
      std::vector<Set> sets;
      for (int s = 0; s < 3; ++s) {
        std::vector<int> ranks;
        for (int r = 0; r < size(); ++r) {
          if (same() % 2 == 0) {
            ranks.push_back(r);
          }
        }
        const bool taken = std::any_of(
            sets.begin(), sets.end(), [&](const Set& other) { return other.ranks == ranks; });
        if (!ranks.empty() && static_cast<int>(ranks.size()) < size() && !taken) {
          sets.push_back({coordinator.add_process_set(ranks), ranks});
        }
      }
      struct Tensor {
        const Set* set;
        std::vector<float> data;
        Handle handle;
      };
      std::vector<Tensor> tensors;
      for (const Set& set : sets) {
        if (index_in(set.ranks, rank) >= 0) {
          for (const std::size_t count : {1U, 3U, 300U, 20000U}) {
            tensors.push_back({&set, std::vector<float>(count, static_cast<float>(rank)), 0});
          }
        }
      }
      std::shuffle(tensors.begin(), tensors.end(), own);
      for (Tensor& tensor : tensors) {
        const auto count = static_cast<std::int64_t>(tensor.data.size());
        tensor.handle = submit(coordinator,
                               request_in(tensor.set->id, "t" + std::to_string(count), count),
                               tensor.data.data(),
                               tensor.data.data());
      }
      for (Tensor& tensor : tensors) {
        finish(coordinator, tensor.handle);
        float expected = 0;
        for (const int member : tensor.set->ranks) {
          expected += static_cast<float>(member);
        }
        EXPECT_EQ(std::count(tensor.data.begin(), tensor.data.end(), expected),
                  static_cast<std::ptrdiff_t>(tensor.data.size()));
      }
      for (const Set& set : sets) {
        EXPECT_TRUE(coordinator.remove_process_set(set.id));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorSetsTest,
                         testing::Values(WorldSetting{3, Transport::kInProcess},
                                         WorldSetting{4, Transport::kInProcess},
                                         WorldSetting{7, Transport::kInProcess}),
                         setting_name);

}  // namespace
}  // namespace aiacc
