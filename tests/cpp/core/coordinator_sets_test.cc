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
#include "tests/cpp/support/gate.h"

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
  ProcessSetsTest() { world_.options.patience = std::chrono::hours(1); }
};

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

/// Callers of one set sleep until the other set is through.
TEST(ProcessSetsWait, KeepsNoOtherSetFromItsRounds) {
  constexpr std::int64_t kLarge = 20'000;
  Gate gate(false);
  CoordinatorWorld world(4);
  world.options.parameters.unit_bytes = 1 << 17;
  world.before = [&](int rank, int, std::size_t bytes) {
    if (rank == 0 && bytes == kLarge * sizeof(float)) {
      gate.pass();
    }
  };
  with_coordinators(world, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const std::uint32_t sets[] = {coordinator.add_process_set({0, 1}),
                                  coordinator.add_process_set({2, 3})};
    std::vector<float> data(kLarge, 1);
    Request request = make_request("x", {kLarge});
    request.process_set = sets[0];
    Handle held = 0;
    if (rank < 2) {
      held = submit(coordinator, request, data.data(), data.data());
    }
    barrier(coordinator, "it is on its way");
    if (rank < 2) {
      finish(coordinator, held);
    } else {
      gate.await(1);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(sum_in(coordinator, sets[1], "y", 2), 4);
      }
      gate.open();
    }
    barrier(coordinator, "nobody leaves before");
  });
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
                         worlds({{Transport::kFake, {3, 4}},
                                 {Transport::kHost, {3}},
                                 {Transport::kTcp, {4}},
                                 {Transport::kHosts, {6}}}),
                         setting_name);

}  // namespace
}  // namespace aiacc
