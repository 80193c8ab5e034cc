#include "csrc/core/execution/chance_seeds.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(ChanceSeeds, AreTheSameForTheSameStepsOfTheSameNames) {
  ChanceSeeds one;
  ChanceSeeds other;
  for (int step = 0; step < 3; ++step) {
    const std::uint64_t a = one.next("a");
    EXPECT_NE(a, one.next("b"));
    EXPECT_EQ(one.next("c"), other.next("c")) << "whatever came of other names";
    EXPECT_EQ(a, other.next("a"));
  }
}

TEST(ChanceSeeds, DifferInNameStepUnitAndRank) {
  ChanceSeeds seeds;
  std::set<std::uint64_t> seen;
  std::size_t drawn = 0;
  for (const char* name : {"a", "b", "bucket.0.a"}) {
    for (int step = 0; step < 50; ++step) {
      const std::uint64_t seed = seeds.next(name);
      for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
        for (const std::uint64_t offset : {0, 4096, 8192}) {
          const std::uint64_t unit = seed_of_unit(seed, tensor, offset);
          seen.insert(unit);
          ++drawn;
          for (int rank = 0; rank < 4; ++rank) {
            seen.insert(seed_of_rank(unit, rank));
            ++drawn;
          }
        }
      }
    }
  }
  EXPECT_EQ(drawn, seen.size());
}

TEST(ChanceSeeds, NamesWithoutEndTakeNoMemoryWithoutEnd) {
  ChanceSeeds seeds;
  std::set<std::uint64_t> seen;
  for (std::size_t i = 0; i < 3 * ChanceSeeds::kMostNames; ++i) {
    seen.insert(seeds.next(std::to_string(i % (2 * ChanceSeeds::kMostNames))));
  }
  EXPECT_EQ(3 * ChanceSeeds::kMostNames, seen.size()) << "those after a restart are others";
}

}  // namespace
}  // namespace aiacc
