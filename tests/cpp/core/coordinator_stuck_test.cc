#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

class CoordinatorStuckTest : public CoordinatorSuite {};

TEST_P(CoordinatorStuckTest, RanksThatWaitForDifferentUnnamedThingsLearnIt) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 10; ++i) {
      float value = 1;
      const Request request =
          rank == 0 ? make_request("", {1}) : make_request("", OpKind::kBarrier, {});
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
                         CoordinatorStuckTest,
                         testing::Values(WorldSetting{2, Transport::kInProcess},
                                         WorldSetting{4, Transport::kInProcess},
                                         WorldSetting{7, Transport::kInProcess},
                                         WorldSetting{2, Transport::kTcp},
                                         WorldSetting{4, Transport::kTcp}),
                         setting_name);

}  // namespace
}  // namespace aiacc
