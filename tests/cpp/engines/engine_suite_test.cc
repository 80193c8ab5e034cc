// The engines for host memory by themselves and on several hosts, as threads of one process.

#include "tests/cpp/engines/engine_suite.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/local/local_engine.h"
#include "tests/cpp/engines/engine_checks.h"

namespace aiacc {
namespace {

class EngineBitsTest : public EngineTest {};

/// Rounding depends on the order of additions, so this fails unless all ranks share one order. Of
/// two NaN that are added either may stay, depending on where a loop of vectors ends: between runs
/// they count as equal.
TEST_P(EngineBitsTest, BitsAreEqualOnAllRanksAndInEveryRun) {
  constexpr std::size_t kCount = 70'001;
  const std::vector<std::size_t> counts(world().host_of.size(), 20'011);
  for (const bool express : {false, true}) {
    std::vector<std::vector<float>> sums(world().host_of.size());
    std::vector<std::vector<float>> parts(world().host_of.size());
    for (int run = 0; run < 2; ++run) {
      const std::vector<std::vector<float>> sums_before = sums;
      on_every_rank([&](int rank, Engine& engine) {
        const int lane = express ? engine.express_lane() : run;
        const auto index = static_cast<std::size_t>(rank);
        const auto unify = [](std::vector<float>& values) {
          std::replace_if(values.begin(), values.end(), [](float x) { return std::isnan(x); }, NAN);
        };
        sums[index] = any_elements<float>(kCount, static_cast<unsigned>(rank));
        engine.all_reduce(lane, sums[index].data(), sums[index].data(), kCount, kSum);
        const auto input = any_elements<float>(20'011 * counts.size(), static_cast<unsigned>(rank));
        std::vector<float> part(20'011);
        engine.reduce_scatter(lane, input.data(), part.data(), counts, kSum);
        unify(part);
        if (run > 0) {
          expect_equal_bits(parts[index], part, "part of rank " + std::to_string(rank));
          std::vector<float> before = sums_before[index];
          std::vector<float> now = sums[index];
          unify(before);
          unify(now);
          expect_equal_bits(before, now, "another run on rank " + std::to_string(rank));
        }
        parts[index] = part;
      });
      for (const std::vector<float>& sum : sums) {
        expect_equal_bits(sums[0], sum, "on another rank");
      }
    }
  }
}

World alone() {
  return {"local_1", {0}, [](const EngineContext& context) {
            return std::make_unique<LocalEngine>(context);
          }};
}

const auto kSmallWorlds = testing::Values(alone(),
                                          tcp_ranks(1),
                                          tcp_ranks(2),
                                          tcp_ranks(3),
                                          tcp_ranks(4),
                                          shm_ranks(1),
                                          shm_ranks(2),
                                          shm_ranks(3),
                                          shm_ranks(4),
                                          on_hosts("Alone", {0}),
                                          on_hosts("OneHost", {4, 4, 4}),
                                          on_hosts("OneRankEach", {0, 1, 2}),
                                          on_hosts("TwoAndTwo", {0, 0, 1, 1}),
                                          on_hosts("RoundRobin", {0, 1, 0, 1}),
                                          on_hosts("ThreeAndOne", {0, 0, 0, 1}),
                                          on_hosts("OneAndThree", {0, 1, 1, 1}),
                                          on_hosts("TwoOneOne", {0, 0, 1, 2}),
                                          on_hosts("CrossedThreeAndTwo", {0, 1, 1, 0, 0}));
const auto kLargeWorlds = testing::Values(tcp_ranks(5), tcp_ranks(7), tcp_ranks(8), shm_ranks(7));
/// Most buffers go through them in several blocks.
const auto kSmallSlots =
    testing::Values(shm_ranks(1, 8192), shm_ranks(3, 8192), shm_ranks(4, 8192));

INSTANTIATE_TEST_SUITE_P(Small, EngineTest, kSmallWorlds, name_of_world);
INSTANTIATE_TEST_SUITE_P(Large, EngineTest, kLargeWorlds, name_of_world);
INSTANTIATE_TEST_SUITE_P(SmallSlots, EngineTest, kSmallSlots, name_of_world);
INSTANTIATE_TEST_SUITE_P(Small, EngineBitsTest, kSmallWorlds, name_of_world);
INSTANTIATE_TEST_SUITE_P(Large, EngineBitsTest, kLargeWorlds, name_of_world);
INSTANTIATE_TEST_SUITE_P(SmallSlots, EngineBitsTest, kSmallSlots, name_of_world);
INSTANTIATE_TEST_SUITE_P(Small, EngineSplitTest, kSmallWorlds, name_of_world);
INSTANTIATE_TEST_SUITE_P(ThreeRanks,
                         EnginePartsTest,
                         testing::Values(tcp_ranks(3),
                                         shm_ranks(3),
                                         on_hosts("OneHost", {4, 4, 4}),
                                         on_hosts("TwoAndOne", {0, 0, 1})),
                         name_of_world);

}  // namespace
}  // namespace aiacc
