#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/engines/hierarchical/hierarchical_device_engine.h"
#include "tests/cpp/support/desertion.h"
#include "tests/cpp/support/device_deserter.h"
#include "tests/cpp/support/nccl_world.h"

namespace aiacc {
namespace {

/// Ranks with a GPU each, and what moves their bytes; the last rank deserts.
struct Watched {
  const char* name;
  std::vector<int> hosts;   ///< of the ranks, for the hierarchical engine; none: a flat one
  bool host_lanes = false;  ///< between the hosts
};

class DeadGpuUnitTest : public testing::TestWithParam<Watched> {
 protected:
  static constexpr int kRanks = 3;
  static constexpr int kDeserter = kRanks - 1;

  DeadGpuUnitTest() {
    world_.size = kRanks;
    world_.options.unit_timeout_s = 1;
    world_.options.parameters.unit_bytes = 1 << 20;
    world_.options.parameters.gpu_unit_bytes = 1 << 20;
    world_.gpu = [this](int rank) {
      std::unique_ptr<DeviceEngine> engine = gpus_.engine(rank, world_.lanes);
      if (!GetParam().hosts.empty()) {
        EngineContext context = gpus_.context(rank, world_.lanes);
        context.host_of = GetParam().hosts;
        context.peer_timeout_s = 0.5;
        engine =
            create_hierarchical_device_engine(std::move(engine), context, GetParam().host_lanes);
      }
      return rank == kDeserter ? std::make_unique<DeviceDeserter>(std::move(engine))
                               : std::move(engine);
    };
  }

  /// Ranks that disagree after the dispatch all fail.
  void check(OpKind kind) {
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      check_desertion(*parts.coordinator, kind, rank, kRanks, kDeserter, rank);
    });
    EXPECT_EQ(0, gpus_.nccl.communicators());
  }

  NcclWorld gpus_{kRanks};
  CoordinatorWorld world_;
};

TEST_P(DeadGpuUnitTest, AnAllReduceThatOneLeavesOutEnds) { check(OpKind::kAllreduce); }

TEST_P(DeadGpuUnitTest, AnAllGatherThatOneLeavesOutEnds) { check(OpKind::kAllgather); }

TEST_P(DeadGpuUnitTest, AnAllToAllThatOneLeavesOutEnds) { check(OpKind::kAlltoall); }

INSTANTIATE_TEST_SUITE_P(Worlds,
                         DeadGpuUnitTest,
                         testing::Values(Watched{"Nccl", {}},
                                         Watched{"Hierarchical", {0, 1, 1}},
                                         Watched{"HostLanes", {0, 1, 2}, true},
                                         Watched{"HostLanesAndNccl", {0, 1, 1}, true}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace aiacc
