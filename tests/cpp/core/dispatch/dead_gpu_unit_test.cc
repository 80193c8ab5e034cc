#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/engines/hierarchical/hierarchical_device_engine.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/support/peers/desertion.h"
#include "tests/cpp/support/peers/device_deserter.h"
#include "tests/cpp/support/submitter.h"

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
  static constexpr double kPeerTimeout = 0.5;
  /// Several times the limit of `check_that_it_ends_well`.
  static constexpr std::chrono::milliseconds kLate{800};

  DeadGpuUnitTest() {
    world_.size = kRanks;
    world_.options.unit_timeout_s = 1;
    world_.options.parameters.unit_bytes = 1 << 20;
    world_.options.parameters.gpu_unit_bytes = 1 << 20;
    world_.gpu = [this](int rank) {
      std::unique_ptr<DeviceEngine> engine = engine_of(rank);
      return rank == kDeserter ? std::make_unique<DeviceDeserter>(std::move(engine))
                               : std::move(engine);
    };
  }

  std::unique_ptr<DeviceEngine> engine_of(int rank) {
    std::unique_ptr<DeviceEngine> engine = gpus_.engine(rank, world_.lanes);
    if (GetParam().hosts.empty()) {
      return engine;
    }
    EngineContext context = gpus_.context(rank, world_.lanes);
    context.host_of = GetParam().hosts;
    context.peer_timeout_s = kPeerTimeout;
    HostEngineFactory between;
    if (GetParam().host_lanes) {
      between = [](const EngineContext& job) { return std::make_unique<TcpEngine>(job); };
    }
    return create_hierarchical_device_engine(std::move(engine), context, between);
  }

  /// Ranks that disagree after the dispatch all fail.
  void check(OpKind kind) {
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      check_desertion(*parts.coordinator, kind, rank, kRanks, kDeserter, rank);
    });
    EXPECT_EQ(0, gpus_.nccl.communicators());
  }

  /// An all-reduce for which one rank is late, in what it does `before`.
  template <class Before>
  void check_that_it_ends_well(Before before) {
    world_.options.unit_timeout_s = 0.2;
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      Submitter gpu(gpus_.cuda, parts, rank);
      before(rank, gpu);
      std::vector<float> data(kDesertedRows, 1);
      gpu.finish(gpu.submit(make_request("x", {kDesertedRows}), data.data(), data.data()));
      EXPECT_EQ(data.back(), kRanks);
      sum(*parts.coordinator, "all are done", 1);
    });
  }

  NcclWorld gpus_{kRanks};
  CoordinatorWorld world_;
};

TEST_P(DeadGpuUnitTest, AnAllReduceThatOneLeavesOutEnds) { check(OpKind::kAllreduce); }

TEST_P(DeadGpuUnitTest, AnAllGatherThatOneLeavesOutEnds) { check(OpKind::kAllgather); }

TEST_P(DeadGpuUnitTest, AnAllToAllThatOneLeavesOutEnds) { check(OpKind::kAlltoall); }

TEST_P(DeadGpuUnitTest, ARankThatIssuesLateIsWaitedFor) {
  world_.gpu = [this](int rank) {
    std::unique_ptr<DeviceEngine> engine = engine_of(rank);
    return rank != kDeserter ? std::move(engine)
                             : std::make_unique<DeviceLatecomer>(std::move(engine), [] {
                                 std::this_thread::sleep_for(kLate);  // it opens its GPU
                               });
  };
  check_that_it_ends_well([](int, Submitter&) {});
}

TEST_P(DeadGpuUnitTest, ARankWhoseGpuComputesIsWaitedFor) {
  world_.gpu = [this](int rank) { return engine_of(rank); };
  check_that_it_ends_well([this](int rank, Submitter& gpu) {
    if (rank == kDeserter) {
      gpus_.cuda.enqueue(gpu.stream(), [] { std::this_thread::sleep_for(kLate); });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         DeadGpuUnitTest,
                         testing::Values(Watched{"Nccl", {}},
                                         Watched{"Hierarchical", {0, 1, 1}},
                                         Watched{"HostLanes", {0, 1, 2}, true},
                                         Watched{"HostLanesAndNccl", {0, 1, 1}, true}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace aiacc
