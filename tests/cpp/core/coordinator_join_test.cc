#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

Request unnamed(OpKind kind) { return make_request("", kind, {}); }

/// Joins and returns the last rank that did.
std::int64_t join(Coordinator& coordinator) {
  const Handle handle = submit(coordinator, unnamed(OpKind::kJoin), nullptr, nullptr);
  auto operation = coordinator.wait(handle);
  const std::int64_t last = operation->value;
  operation.reset();
  coordinator.release(handle);
  return last;
}

class CoordinatorJoinTest : public testing::TestWithParam<WorldSetting> {
 protected:
  CoordinatorJoinTest() {
    world_.size = GetParam().size;
    world_.transport = GetParam().transport;
  }
  int size() const { return world_.size; }

  CoordinatorWorld world_;
};

/// Rank r has r steps; what the others do after that, it answers with zeros.
TEST_P(CoordinatorJoinTest, RanksWithFewerStepsGiveZeros) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int epoch = 0; epoch < 4; ++epoch) {
      for (int step = 0; step < rank; ++step) {
        float first = 0;
        for (int r = step + 1; r < size(); ++r) {
          first += static_cast<float>(r);
        }
        std::vector<float> large(5000, static_cast<float>(rank));
        float small = static_cast<float>(rank);
        Request average = make_request("small", {1});
        average.op = ReduceOp::kAverage;
        const Handle a = submit(coordinator, make_request("", {5000}), large.data(), large.data());
        const Handle b = submit(coordinator, average, &small, &small);
        finish(coordinator, b);
        finish(coordinator, a);
        EXPECT_EQ(std::count(large.begin(), large.end(), first), 5000);
        EXPECT_FLOAT_EQ(small, first / static_cast<float>(size()));
      }
      EXPECT_EQ(join(coordinator), size() - 1);
      // Automatic names fit again, though no two ranks have used as many.
      float value = 1;
      finish(coordinator, submit(coordinator, make_request("", {1}), &value, &value));
      EXPECT_EQ(value, static_cast<float>(size()));
    }
  });
}

TEST_P(CoordinatorJoinTest, WithAnAllReduceUnderWay) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 10; ++i) {
      float value = 1;
      if (rank != 0) {
        const Handle handle = submit(coordinator, make_request("x", {1}), &value, &value);
        if (rank == 1) {
          EXPECT_GE(join(coordinator), 0);  // its share is under way: that is not zero
          finish(coordinator, handle);
        } else {
          finish(coordinator, handle);
          EXPECT_GE(join(coordinator), 0);
        }
        EXPECT_EQ(value, static_cast<float>(size() - 1));
      } else {
        EXPECT_GE(join(coordinator), 0);
      }
    }
  });
}

TEST_P(CoordinatorJoinTest, OtherOperationsFailAtOnce) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 3; ++i) {
      float value = 1;
      if (rank != 0) {
        for (const OpKind kind : {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kBarrier}) {
          Request request = make_request("", kind, {1});
          if (kind == OpKind::kBarrier) {
            request.shape.clear();
          }
          const Handle handle = submit(coordinator, request, &value, &value);
          const Status status = status_of([&] { coordinator.wait(handle); });
          EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
        }
      }
      join(coordinator);
      EXPECT_EQ(sum(coordinator, "x", 1), static_cast<float>(size()));
    }
  });
}

TEST_P(CoordinatorJoinTest, RanksThatWaitForDifferentUnnamedThingsLearnIt) {
  if (size() < 2) {
    GTEST_SKIP() << "needs two ranks";
  }
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 10; ++i) {
      float value = 1;
      const Request request = rank == 0 ? make_request("", {1}) : unnamed(OpKind::kBarrier);
      const auto rounds = parts.plane->rounds();
      const Handle handle = submit(coordinator, request, &value, &value);
      if (i % 3 == 1) {
        while (parts.plane->rounds() == rounds) {  // it has been sent before the wait begins
          std::this_thread::yield();
        }
      }
      const Status status = status_of([&] { coordinator.wait(handle); });
      EXPECT_EQ(status.code(), Code::kMismatch);
      EXPECT_NE(status.message().find("rank 0 for 'allreduce.noname."), std::string::npos);
      EXPECT_NE(status.message().find("for 'barrier.noname."), std::string::npos);
      // Ranks that are slow are waited for.
      for (int k = 0; k < 5; ++k) {
        if (rank == k % size()) {
          std::this_thread::yield();
        }
        finish(coordinator,
               submit(coordinator, make_request("", OpKind::kBroadcast, {1}), &value, &value));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorJoinTest,
                         testing::Values(WorldSetting{1, Transport::kInProcess},
                                         WorldSetting{2, Transport::kInProcess},
                                         WorldSetting{4, Transport::kInProcess},
                                         WorldSetting{7, Transport::kInProcess},
                                         WorldSetting{2, Transport::kTcp},
                                         WorldSetting{4, Transport::kTcp}),
                         setting_name);

}  // namespace
}  // namespace aiacc
