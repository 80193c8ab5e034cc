// What is special about ShmEngine; what all engines promise is in engine_suite.cc.

#include "csrc/engines/shm/shm_engine.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/interruptions.h"

namespace aiacc {
namespace {

TEST(ShmEngineOrderTest, PiecesThatDoNotFitAreAnError) {
  const Status status = status_of([] {
    with_engines(shm_ranks(2), [](int rank, Engine& engine) {
      const std::string data(2, 'x');
      std::string out(4, ' ');
      const std::vector<std::size_t> expected = {1, rank == 0 ? 2U : 1U};
      engine.all_to_all(0, data.data(), out.data(), {1, 1}, expected);
    });
  });
  expect_error(status, Code::kInternal, {"disagree"});
}

/// A rank that is not the first of the job is called by its number in the job, whatever signals
/// come.
TEST(ShmWaitTest, NamesTheRankAsInTheJobOnEveryLane) {
  with_engines(shm_ranks(3), [&](int rank, Engine& engine) {
    if (rank == 0) {
      return;
    }
    const auto part = engine.split({1, 2}, 0);
    if (rank == 2) {
      return;
    }
    std::vector<std::unique_ptr<BlockedCall>> blocked;
    for (int lane = 0; lane <= part->express_lane(); ++lane) {
      blocked.push_back(std::make_unique<BlockedCall>([&, lane] {
        const Interruptions signals;
        float value = 1;
        part->all_reduce(lane, &value, &value, 1, kSum);
      }));
    }
    for (int lane = 0; lane <= part->express_lane(); ++lane) {
      yield_until([&] { return part->waits(lane).seconds > 0; });
      EXPECT_EQ(2, part->waits(lane).for_rank);
    }
    part->abort({Code::kShutdown, "stop now"});
    for (const auto& call : blocked) {
      expect_error(call->join(), Code::kShutdown, {"stop now"});
    }
  });
}

TEST(ShmEngineHostsTest, RanksOfSeveralHostsAreRefused) {
  EngineContext context;
  context.size = 4;
  context.host_of = {7, 7, 3, 7};
  expect_error(
      status_of([&] { ShmEngine engine(context); }), Code::kInvalidArgument, {"rank(s) 2 "});
}

}  // namespace
}  // namespace aiacc
