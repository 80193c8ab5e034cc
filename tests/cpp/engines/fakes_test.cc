// What tests rely on without seeing it: that different calls and orders are found out. That
// collectives compute, and that who asks not to block has to wait, is seen by the engine on the
// fake.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/fakes/fake_engine.h"
#include "tests/cpp/support/nccl_world.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {
namespace {

/// `body(rank, engine)` on every rank, which may misuse NCCL; engines end aborted.
template <class Body>
void misuse_nccl(NcclWorld& world, Body body) {
  std::vector<std::unique_ptr<NcclEngine>> engines(static_cast<std::size_t>(world.tcp.size()));
  run_as_ranks(world.tcp.size(), [&](int rank) {
    auto& engine = engines[static_cast<std::size_t>(rank)];
    engine = world.engine(rank, 2);
    const auto device = engine->device(rank);
    const Device::Scope scope(*device);
    body(rank, *engine);
    engine->abort({Code::kShutdown, "over"});
  });
}

class FakeNcclTest : public testing::TestWithParam<int> {
 protected:
  NcclWorld world_{GetParam()};
};

TEST_P(FakeNcclTest, DifferentCallsAreFoundOut) {
  misuse_nccl(world_, [&](int rank, NcclEngine& engine) {
    std::vector<float> values(2, 1.0f);
    engine.all_reduce(0, values.data(), values.data(), rank == 0 ? 2 : 1, {});
    EXPECT_TRUE(engine.quiesce(soon()));
    EXPECT_EQ(Code::kEngine, status_of([&] { engine.check(); }).code());
  });
  EXPECT_EQ(1, world_.nccl.misuses());
  EXPECT_NE(std::string::npos, world_.nccl.complaint().find("all_reduce of 2 elements"));
}

/// Two lanes have a communicator each, of which a device runs one operation at a time.
TEST_P(FakeNcclTest, OneOrderOnAllRanksIsNeededWhereFewFit) {
  world_.nccl.set_resident(1);
  std::atomic<int> arrived{0};
  misuse_nccl(world_, [&](int rank, NcclEngine& engine) {
    float values[] = {1, 1};
    const auto reduce = [&](int lane) {
      engine.all_reduce(lane, &values[lane], &values[lane], 1, {});
    };
    reduce(0);
    reduce(1);
    EXPECT_TRUE(engine.quiesce(soon()));
    reduce(rank % 2);
    reduce(1 - rank % 2);
    await_all(arrived, GetParam());
    // All have issued everything: whatever fits ends at once, and this never does.
    EXPECT_FALSE(engine.quiesce(Clock::now() + std::chrono::milliseconds(200)));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, FakeNcclTest, testing::Values(2, 4));

TEST(FakeEngine, PiecesThatDoNotFitAreAnError) {
  const auto hub = std::make_shared<FakeHub>(2, 1);
  const Status status = status_of([&] {
    run_as_ranks(2, [&](int rank) {
      FakeEngine engine(hub, rank);
      const std::string data(2, 'x');
      std::string out(4, ' ');
      const std::vector<std::size_t> expected = {1, rank == 0 ? 2U : 1U};
      engine.all_to_all(0, data.data(), out.data(), {1, 1}, expected);
    });
  });
  expect_error(status, Code::kEngine, {"another piece"});
}

}  // namespace
}  // namespace aiacc
