// Process sets: those that all ranks add, and those that their members form alone. What is reduced
// in them, and what fails when they go, is in coordinator_random_test.cc.

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

float sum_in(Coordinator& coordinator, std::uint32_t set, const std::string& name, float value) {
  Request request = make_request(name, {1});
  request.process_set = set;
  finish(coordinator, submit(coordinator, request, &value, &value));
  return value;
}

class ProcessSetsTest : public CoordinatorSuite {
 protected:
  // Whoever ignores a round for this reason hangs.
  ProcessSetsTest() { world_.options.patience = std::chrono::seconds(1000); }
};

TEST_P(ProcessSetsTest, AreListedUntilTheyAreRemovedOnce) {
  with_coordinators(world_, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const std::uint32_t first = coordinator.add_process_set({0});
    const std::uint32_t others = coordinator.add_process_set({2, 1});
    EXPECT_NE(first, others);
    EXPECT_EQ(coordinator.communicators().ids(), (std::vector<std::uint32_t>{0, first, others}));
    EXPECT_TRUE(coordinator.remove_process_set(others));
    EXPECT_FALSE(coordinator.remove_process_set(others));
    EXPECT_FALSE(coordinator.remove_process_set(0));
    EXPECT_EQ(coordinator.communicators().ids(), (std::vector<std::uint32_t>{0, first}));
  });
}

/// The first set of a job, which the others do not expect, of every two ranks.
TEST_P(ProcessSetsTest, FormingNeedsTheMembersAlone) {
  for (int last = 1; last < size(); ++last) {
    for (int first = 0; first < last; ++first) {
      const std::vector<int> members = {first, last};
      SCOPED_TRACE("ranks " + std::to_string(first) + " and " + std::to_string(last));
      std::atomic<int> left{2};
      std::promise<void> over;
      const std::shared_future<void> end = over.get_future().share();
      with_coordinators(world_, [&](int rank, RankParts& parts) {
        if (index_in(members, rank) >= 0) {
          const std::uint32_t set = parts.coordinator->form_process_set("pair", members);
          EXPECT_EQ(sum_in(*parts.coordinator, set, "x", 2), 4);
          if (--left == 0) {
            over.set_value();
          }
        }
        end.wait();
      });
    }
  }
}

TEST_P(ProcessSetsTest, WhoHasLeftIsNotWaitedFor) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    if (rank < 2) {
      const std::uint32_t set = coordinator.form_process_set("a", {0, 1});
      sum_in(coordinator, set, "x", 1);
      if (rank == 1) {
        expect_error(status_of([&] { sum_in(coordinator, set, "x", 1); }),
                     Code::kMismatch,
                     {"rank 0 has left process set"});
      }
      coordinator.leave_process_set(set);
    }
    EXPECT_EQ(sum(coordinator, "all", 1), static_cast<float>(size()));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         ProcessSetsTest,
                         testing::Values(WorldSetting{3, Transport::kInProcess},
                                         WorldSetting{4, Transport::kInProcess},
                                         WorldSetting{3, Transport::kTcp},
                                         WorldSetting{4, Transport::kTcp},
                                         WorldSetting{6, Transport::kTcp}),
                         setting_name);

}  // namespace
}  // namespace aiacc
