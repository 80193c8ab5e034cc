// The fake engine of the other tests is an engine like any other.

#include "tests/cpp/support/fakes/fake_engine.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {
namespace {

template <class Body>
void with_engines(int size, Body body) {
  const auto hub = std::make_shared<FakeHub>(size, 2);
  run_as_ranks(size, [&](int rank, RankThreads& rank_threads) {
    FakeEngine engine(hub, rank);
    const auto guard = rank_threads.on_failure([&](const Status& status) { engine.abort(status); });
    body(rank, engine);
  });
}

class FakeEngineTest : public testing::TestWithParam<int> {};

TEST_P(FakeEngineTest, DoesEveryOperation) {
  const int size = GetParam();
  with_engines(size, [&](int rank, Engine& engine) {
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      check_every_operation(engine, lane, rank, size);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, FakeEngineTest, testing::Values(1, 3));

TEST(FakeEngineOrderTest, PiecesThatDoNotFitAreAnError) {
  const Status status = status_of([] {
    with_engines(2, [](int rank, Engine& engine) {
      const std::string data(2, 'x');
      std::string out(4, ' ');
      const std::vector<std::size_t> expected = {1, rank == 0 ? 2u : 1u};
      engine.all_to_all(0, data.data(), out.data(), {1, 1}, expected);
    });
  });
  EXPECT_NE(std::string::npos, status.message().find("another piece")) << status.message();
}

}  // namespace
}  // namespace aiacc
