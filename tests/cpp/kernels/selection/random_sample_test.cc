#include "csrc/kernels/selection/random_sample.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

using Floats = std::vector<float>;

Floats numbers(std::size_t count, float step) {
  Floats values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = step * (static_cast<float>(i % 1000) - 499.5F);
  }
  return values;
}

/// Also where runs are the longest, those of a density of a millionth, and beyond 2^32 elements.
TEST(RandomSample, HasOnePlaceInEveryRun) {
  constexpr std::size_t kMany = (std::size_t{1} << 36) + 5;
  for (const std::size_t count : {0UL, 1UL, 2UL, 7UL, 100UL, 4999UL, 123'457UL, kMany}) {
    for (const std::size_t part : {1, 2, 3, 100, 5000, 1'000'000}) {
      const std::size_t k = (count + part - 1) / part;
      if (k > 200'000) {
        continue;
      }
      for (const std::uint64_t seed : {0, 1, 2}) {
        const RandomSample sample(count, k, seed);
        std::size_t begin = 0;
        for (std::size_t i = 0; i < k; ++i) {
          ASSERT_LE(begin, sample.place(i)) << count << " " << k;
          ASSERT_LT(sample.place(i), begin + sample.run(i)) << count << " " << k;
          ASSERT_LE(sample.run(k - 1), sample.run(i));
          ASSERT_GE(sample.run(k - 1) + 1, sample.run(i));
          begin += sample.run(i);
        }
        ASSERT_EQ(count, k == 0 ? 0 : begin);
      }
    }
  }
}

TEST(RandomSample, ElementsAreChosenEquallyOften) {
  constexpr std::size_t kRun = 8;
  constexpr std::uint64_t kSeeds = 8000;
  std::vector<int> chosen(2 * kRun);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const RandomSample sample(2 * kRun, 2, seed);
    ++chosen[sample.place(0)];
    ++chosen[sample.place(1)];
  }
  // Of a binomial distribution, 1000 with a standard deviation of 30.
  for (const int times : chosen) {
    EXPECT_NEAR(1000, times, 5 * 30);
  }
}

TEST(RandomSample, WhatIsTakenAndWhatIsLeftIsWhatThereWas) {
  constexpr std::size_t kCount = 5000;
  const RandomSample places(kCount, 250, 9);
  const Floats in = numbers(kCount, 0.25F);
  for (const bool weighted : {false, true}) {
    Floats residual = numbers(kCount, -0.5F);
    Floats sample(places.size());
    take_sample(sample.data(), in.data(), residual.data(), places, weighted);
    Floats decoded(kCount, 7.0F);
    put_sample(decoded.data(), sample.data(), places);
    const Floats before = numbers(kCount, -0.5F);
    std::size_t sent = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(in[i] + before[i], decoded[i] + residual[i]) << i;
      sent += decoded[i] != 0 ? 1 : 0;
      if (decoded[i] != 0) {
        ASSERT_EQ((weighted ? 20 : 1) * (in[i] + before[i]), decoded[i]);
      }
    }
    EXPECT_EQ(places.size(), sent);
  }
}

TEST(RandomSample, WhatIsNotFiniteIsSeenWhereverItIs) {
  const RandomSample places(3000, 10, 1);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const std::size_t where : {0, 1234, 2999}) {
      for (const bool in_residual : {false, true}) {
        Floats in = numbers(3000, 1.0F);
        Floats residual = numbers(3000, 2.0F);
        (in_residual ? residual : in)[where] = bad;
        const Floats before = residual;
        Floats sample(places.size());
        take_sample(sample.data(), in.data(), residual.data(), places, false);
        for (const float value : sample) {
          EXPECT_TRUE(std::isnan(value));
        }
        for (std::size_t i = 0; i < before.size(); ++i) {
          ASSERT_TRUE(i == where || before[i] == residual[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace aiacc
