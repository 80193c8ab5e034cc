// Ranks that use several GPUs each; results of all sorts are in coordinator_random_test.cc.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {
namespace {

/// A rank that has joined has no tensor: its share of a placement is whichever GPU is there.
TEST(SeveralGpus, OfARankThatHasJoined) {
  NcclWorld gpus(3, kNcclHeaderVersion, 2);
  with_gpus(gpus, Place::kNccl, {}, 1, [&](int rank, RankParts& parts) {
    const auto step = [&](const std::string& name, int device, float expected) {
      Submitter gpu(gpus.cuda, parts, 2 * rank + device);
      std::vector<float> values(100, 1);
      gpu.finish(gpu.submit(make_request(name), values));
      EXPECT_EQ(std::vector<float>(100, expected), values) << name;
    };
    step("x", 1, 3);
    if (rank > 0) {
      step("x", 1, 2);    // known: rank 0 is where its own tensor was
      step("new", 0, 2);  // rank 0 has told nothing about it
      step("new", 0, 2);
    }
    join(*parts.coordinator);
    step("new", 1, 3);
    step("x", 0, 3);
  });
}

TEST(SeveralGpus, TooManyCombinationsAreRefused) {
  constexpr int kDevices = DeviceEngineCache::kSplitIds + 1;
  FakeCuda cuda(kDevices);
  FakeNccl nccl(cuda);
  CoordinatorWorld world;
  world.size = 1;
  world.gpu = [&](int) {
    EngineContext context;
    return std::make_unique<NcclEngine>(cuda.driver(), nccl.api(), context);
  };
  with_coordinators(world, [&](int, RankParts& parts) {
    const auto use = [&](int device) {
      Submitter gpu(cuda, parts, device);
      std::vector<float> values(1, 1);
      gpu.finish(gpu.submit(make_request("x"), values));
    };
    for (int device = 0; device + 1 < kDevices; ++device) {
      use(device);
    }
    const Status status = status_of([&] { use(kDevices - 1); });
    EXPECT_EQ(Code::kEngine, status.code()) << status.message();
    EXPECT_NE(std::string::npos, status.message().find("more than 32 combinations"));
  });
}

TEST(SeveralGpus, AnAgreementNamesThoseOfAllMembers) {
  NegotiatingRanks ranks(3);
  const auto placement = [&](const std::vector<RoundOutcome>& outcomes) {
    EXPECT_EQ(1U, outcomes[0].ready.size());
    for (const RoundOutcome& outcome : outcomes) {
      EXPECT_EQ(*outcomes[0].ready.at(0).devices, *outcome.ready.at(0).devices);
    }
    return *outcomes[0].ready.at(0).devices;
  };
  const auto submit = [&](const std::vector<int>& devices) {
    for (int rank = 0; rank < 3; ++rank) {
      Request request = make_request("w");
      request.device = devices[static_cast<std::size_t>(rank)];
      ranks.submit(rank, request);
    }
  };
  submit({0, 5, 1});
  EXPECT_EQ((DevicePlacement{0, 5, 1}), placement(ranks.round()));
  submit({0, 5, 1});
  EXPECT_EQ((DevicePlacement{0, 5, 1}), placement(ranks.round())) << "as a bit";
  submit({0, 2, 1});
  EXPECT_TRUE(ranks.round()[0].ready.empty()) << "rank 1 has moved";
  EXPECT_EQ((DevicePlacement{0, 2, 1}), placement(ranks.round()));
  ranks.submit_everywhere(make_request("host"));
  EXPECT_EQ(nullptr, ranks.round()[0].ready.at(0).devices);
}

}  // namespace
}  // namespace aiacc
