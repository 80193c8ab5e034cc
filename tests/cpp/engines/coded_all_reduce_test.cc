#include "csrc/engines/coded_all_reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/engines/coded_sums.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

constexpr Coding kInt8{WireFormat::kInt8Blocks, 256};
constexpr Coding kInt4{WireFormat::kInt4Blocks, 128};
constexpr Coding kFloat8{WireFormat::kFloat8Blocks, 512};
constexpr Coding kLargest{WireFormat::kLargest, 50'000 + Coding::kExact};
constexpr Coding kRandom{WireFormat::kRandom, 50'000};
constexpr Coding kUnbiased{WireFormat::kRandom, 70'000 + Coding::kUnbiased};
constexpr Coding kCodings[] = {kInt8, kInt4, kFloat8, kLargest, kRandom, kUnbiased};

/// No more than fewer than ranks; blocks for some ranks only; a last block that is short.
constexpr std::size_t kCounts[] = {0, 1, 3, 128, 700, 2048, 4999};

std::string named(const Coding& coding, std::size_t count) {
  return std::string(name_of(coding.format)) + " of " + std::to_string(count);
}

std::vector<CodedRank> given(int size, std::size_t count, bool feedback) {
  std::vector<CodedRank> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const auto seed = static_cast<std::uint32_t>(10 * rank + 1);
    ranks.push_back(
        {exact_floats(count, seed), feedback ? exact_floats(count, seed + 1) : Floats(), seed});
  }
  return ranks;
}

/// This rank's part of an all-reduce, on lane 0; the memory that it has taken.
CodedMemory reduce(Engine& engine, CodedRank& mine, const Coding& coding, int rank, int size) {
  CodedMemory memory;
  coded_all_reduce(engine,
                   0,
                   {mine.values.data(),
                    mine.residual.empty() ? nullptr : mine.residual.data(),
                    mine.values.size(),
                    coding,
                    mine.seed,
                    kCommonSeed},
                   rank,
                   size,
                   memory);
  return memory;
}

class CodedAllReduceTest : public testing::TestWithParam<World> {
 protected:
  const World& hosts() const { return GetParam(); }
  int size() const { return hosts().size(); }
  /// Where nothing travels between hosts of several ranks, all ranks exchange with all.
  bool on_two_levels() const {
    const HostTopology layout(hosts().host_of);
    return layout.hosts() > 1 && layout.hosts() < size();
  }
  /// Every rank does its part.
  void reduce_all(std::vector<CodedRank>& ranks, const Coding& coding) const {
    with_engines(hosts(), [&](int rank, Engine& engine) {
      reduce(engine, ranks[static_cast<std::size_t>(rank)], coding, rank, size());
    });
  }
  void reference(std::vector<CodedRank>& ranks, const Coding& coding) const {
    if (on_two_levels()) {
      return coded_sum_of_hosts(ranks, hosts().host_of, coding);
    }
    std::vector<CodedRank*> all;
    for (CodedRank& rank : ranks) {
      all.push_back(&rank);
    }
    coded_sum(all, coding);
  }
};

TEST_P(CodedAllReduceTest, GivesTheBitsOfTheSameStepsWithoutMessages) {
  for (const bool feedback : {false, true}) {
    std::vector<std::vector<CodedRank>> expected;
    for (const Coding& coding : kCodings) {
      for (const std::size_t count : kCounts) {
        expected.push_back(given(size(), count, feedback));
        reference(expected.back(), coding);
      }
    }
    with_engines(hosts(), [&](int rank, Engine& engine) {
      const auto index = static_cast<std::size_t>(rank);
      auto next = expected.begin();
      for (const Coding& coding : kCodings) {
        for (const std::size_t count : kCounts) {
          CodedRank mine = given(size(), count, feedback)[index];
          reduce(engine, mine, coding, rank, size());
          const CodedRank& wanted = (*next++)[index];
          expect_equal_bits(wanted.values, mine.values, named(coding, count));
          expect_equal_bits(wanted.residual, mine.residual, named(coding, count) + ": residual");
        }
      }
    });
  }
}

/// Roundings: each rank's t = value + residual; up to n - 1 additions of codes, which to nearest
/// are at most 2 |t|; the owner's sum with its residual. What is kept, t minus its code, is exact.
/// By chance codes may be a step beyond |t|, less than a quarter of the largest of all, and what is
/// kept is rounded too.
TEST_P(CodedAllReduceTest, SumsAndResidualsTogetherLoseNothing) {
  constexpr std::size_t kCount = 3001;
  for (const Coding& coding : {kInt8,
                               kInt4,
                               kFloat8,
                               kLargest,
                               kRandom,
                               Coding{kInt8.format, kInt8.detail + Coding::kStochastic},
                               Coding{kInt4.format, kInt4.detail + Coding::kStochastic},
                               Coding{kFloat8.format, kFloat8.detail + Coding::kStochastic}}) {
    std::vector<CodedRank> ranks = given(size(), kCount, true);
    for (int step = 0; step < 4; ++step) {
      std::vector<double> before(kCount);
      std::vector<double> magnitude(kCount);
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        ranks[r].values = exact_floats(kCount, static_cast<std::uint32_t>(50 * r) + 7U * step);
        for (std::size_t i = 0; i < kCount; ++i) {
          const double value = ranks[r].values[i];
          const double kept = ranks[r].residual[i];
          before[i] += value + kept;
          magnitude[i] += std::abs(value) + std::abs(kept);
        }
      }
      reduce_all(ranks, coding);
      for (const CodedRank& rank : ranks) {
        expect_equal_bits(ranks[0].values, rank.values, named(coding, kCount));
      }
      const bool by_chance = coding.in_blocks() && coding.stochastic();
      const double largest = *std::max_element(magnitude.begin(), magnitude.end());
      const double beyond = by_chance ? size() * largest / 4 : 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        double after = ranks[0].values[i];
        for (const CodedRank& rank : ranks) {
          after += rank.residual[i];
        }
        ASSERT_NEAR(before[i], after, 0x1p-24 * (2 * size() + 2) * (magnitude[i] + beyond))
            << named(coding, kCount) << ", step " << step << ", element " << i;
      }
    }
  }
}

TEST(CodedAllReduceMemoryTest, PairsBeyondTheBreakEvenDensityAreNotGathered) {
  constexpr std::size_t kCount = 5000;
  const World hosts = on_hosts("", {0, 1, 2, 3});
  for (const std::uint32_t millionths : {240'000U, 260'000U}) {
    const Coding coding{WireFormat::kLargest, millionths};
    std::vector<CodedRank> expected = given(4, kCount, true);
    coded_sum({&expected[0], &expected[1], &expected[2], &expected[3]}, coding);
    with_engines(hosts, [&](int rank, Engine& engine) {
      const auto index = static_cast<std::size_t>(rank);
      CodedRank mine = given(4, kCount, true)[index];
      const CodedMemory memory = reduce(engine, mine, coding, rank, 4);
      EXPECT_EQ(millionths > 250'000, memory.received.empty());
      expect_equal_bits(expected[index].values, mine.values, std::to_string(millionths));
      expect_equal_bits(expected[index].residual, mine.residual, "residual");
    });
  }
}

TEST_P(CodedAllReduceTest, WhatIsNotFiniteOnOneRankIsSoOnAll) {
  constexpr std::size_t kCount = 3000;
  constexpr std::size_t kPlace = 2500;
  for (const Coding& coding : kCodings) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (const int odd : {0, size() - 1}) {
        std::vector<CodedRank> ranks = given(size(), kCount, true);
        ranks[static_cast<std::size_t>(odd)].values[kPlace] = bad;
        reduce_all(ranks, coding);
        for (const CodedRank& rank : ranks) {
          const auto is_finite = [](float value) { return std::isfinite(value); };
          EXPECT_FALSE(std::all_of(rank.values.begin(), rank.values.end(), is_finite));
          if (coding.format != WireFormat::kRandom) {
            EXPECT_FALSE(std::isfinite(rank.values[kPlace])) << named(coding, kCount);
            EXPECT_TRUE(std::isfinite(rank.values[0])) << named(coding, kCount);
          }
          for (const float kept : rank.residual) {
            ASSERT_TRUE(std::isfinite(kept)) << named(coding, kCount);
          }
        }
      }
    }
  }
}

TEST_P(CodedAllReduceTest, AnAbortEndsItWithItsError) {
  if (size() < 2) {
    GTEST_SKIP() << "needs two ranks";
  }
  // The last rank never comes.
  with_engines(hosts(), [&](int rank, Engine& engine) {
    if (rank == size() - 1) {
      return;
    }
    for (const Coding& coding : {kInt8, kLargest, kRandom}) {
      CodedRank mine = given(size(), 100'000, true)[static_cast<std::size_t>(rank)];
      BlockedCall blocked([&] { reduce(engine, mine, coding, rank, size()); });
      engine.abort(Status(Code::kShutdown, "stop now"));
      EXPECT_EQ("stop now", blocked.join().message());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         CodedAllReduceTest,
                         testing::Values(on_hosts("Alone", {0}),
                                         on_hosts("OneHost", {0, 0, 0}),
                                         on_hosts("OneRankPerHost", {0, 1, 2, 3}),
                                         on_hosts("TwoByTwo", {0, 0, 1, 1}),
                                         on_hosts("Interleaved", {1, 0, 1, 0}),
                                         on_hosts("ThreeAndOne", {0, 0, 0, 1}),
                                         on_hosts("ThreeHosts", {0, 1, 0, 2, 1, 2, 2})),
                         name_of_world);

}  // namespace
}  // namespace aiacc
