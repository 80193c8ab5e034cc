// What is special about NCCL; what all engines for GPUs promise is in device_engine_suite_test.cc.

#include "csrc/engines/nccl/nccl_engine.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/members.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/support/nccl_world.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {
namespace {

constexpr int kLanes = 2;

class NcclEngineTest : public testing::TestWithParam<int> {
 protected:
  template <class Body>
  void with_engines(Body body) {
    with_nccl(world_, kLanes, body);
  }
  int size() const { return GetParam(); }

  NcclWorld world_{GetParam()};
};

TEST_P(NcclEngineTest, CallsThatAreNotOverAtOnce) {
  world_.nccl.set_polls(3);
  with_engines([&](int rank, NcclEngine& engine) {
    FinishingEngine finishing(engine, rank);
    check_every_operation(finishing, 0, rank, size());
    check_every_operation(finishing, 1, rank, size());
  });
}

TEST_P(NcclEngineTest, NothingConnectsBeforeTheFirstOperation) {
  with_engines([&](int rank, NcclEngine& engine) {
    engine.split({rank}, 7);
    EXPECT_EQ(0, world_.nccl.communicators());
  });
}

TEST_P(NcclEngineTest, BuffersGrowAndAreRegistered) {
  with_engines([&](int rank, NcclEngine& engine) {
    static_cast<void>(rank);
    float one = 1;
    engine.all_reduce(0, &one, &one, 1, {});
    void* small = engine.buffer(0, 100);
    void* other = engine.buffer(0, 100);
    EXPECT_NE(small, other) << "they take turns";
    EXPECT_EQ(small, engine.buffer(0, 200));
    EXPECT_EQ(0U, reinterpret_cast<std::uintptr_t>(small) % 256);
    const std::size_t bytes = std::size_t{5} << 20;
    auto* large = static_cast<std::byte*>(engine.buffer(0, bytes));
    EXPECT_NE(other, large);
    EXPECT_EQ(small, engine.buffer(0, 100)) << "only one has grown";
    EXPECT_NE(small, engine.buffer(1, 100));
    // In the middle of it, as a part of a hierarchical operation is.
    engine.all_reduce(0, large + 256, large + 256, bytes / sizeof(float) - 64, {});
    ASSERT_TRUE(engine.quiesce(Clock::now() + std::chrono::seconds(60)));
    EXPECT_GE(world_.nccl.registrations(), 2 * kLanes + 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclEngineTest, testing::Values(1, 2, 3, 4));

TEST(NcclEngine, CommunicatorsOfTheLanes) {
  NcclWorld world(2);
  with_nccl(world, 3, [&](int rank, NcclEngine& engine) {
    float one = 1;
    for (int lane = 0; lane < 3; ++lane) {
      engine.all_reduce(lane, &one, &one, 1, {});
    }
    ASSERT_TRUE(engine.quiesce(Clock::now() + std::chrono::seconds(60)));
    EXPECT_EQ((std::vector<int>{0, 1, 2}), world.nccl.issued(rank));
    EXPECT_NE(engine.stream(0), engine.stream(1));
    EXPECT_EQ(engine.stream(0), engine.stream(3));
  });
}

TEST(NcclEngine, AnAlgorithmWhereTheLibraryLetsItBeChosen) {
  for (const int version : {kNcclHeaderVersion, nccl_version_code(2, 28, 9)}) {
    NcclWorld world(2, version);
    with_nccl(world, 1, [&](int, NcclEngine& engine) {
      float value = 1;
      DeviceReduction reduction;
      for (const Algorithm algorithm : {Algorithm::kAny, Algorithm::kTree, Algorithm::kRing}) {
        reduction.algorithm = algorithm;
        engine.all_reduce(0, &value, &value, 1, reduction);
      }
      ASSERT_TRUE(engine.quiesce(Clock::now() + std::chrono::seconds(60)));
      EXPECT_EQ(8.0F, value);
    });
    const int expected = version == kNcclHeaderVersion ? 2 : 0;
    EXPECT_EQ(expected, world.nccl.preferred("tree"));
    EXPECT_EQ(expected, world.nccl.preferred("ring"));
  }
}

/// This rank's GPU could do it. The others' cannot, so nobody begins.
TEST(NcclRefusals, WhatOneRanksGpuCannotDoIsRefusedByAll) {
  NcclWorld world(1);
  const DeviceReduction narrow{DataType::kFloat32, ReduceOp::kSum, WireFormat::kFloat8E4M3};
  const auto refusal = [&](int capability) {
    EngineContext context = world.context(0, 1);
    context.gpu_capability = capability;
    context.gpu_capability_rank = 5;
    NcclEngine engine(world.cuda.driver(), world.nccl.api(), context);
    const auto device = engine.device(0);
    const Device::Scope scope(*device);
    return engine.refusal(narrow);
  };
  EXPECT_EQ("", refusal(0)) << "the device itself is asked";
  EXPECT_EQ("", refusal(9));
  EXPECT_NE(std::string::npos, refusal(8).find("compute capability 8, that of rank 5 (expected 9"))
      << refusal(8);
}

}  // namespace
}  // namespace aiacc
