// The kernels of select.h on every level against plain loops, at every place of a vector.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"

namespace aiacc {
namespace {

std::uint32_t magnitude(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffff;
}

class VectorSelect : public testing::TestWithParam<const VectorLevel*> {
 protected:
  static const VectorLevel& level() { return *GetParam(); }
};

constexpr std::size_t kCounts[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 100, 515};

TEST_P(VectorSelect, AccumulatesAndTellsTheLargest) {
  for (const std::size_t count : kCounts) {
    for (const std::size_t offset : {0, 1, 3}) {
      const std::vector<float> in = any_elements<float>(count + offset, 1);
      const std::vector<float> residual = any_elements<float>(count + offset, 2);
      for (const float factor : {1.0F, 0.3F, -2.0F}) {
        for (const bool with_residual : {false, true}) {
          std::vector<float> expected(count);
          std::uint32_t largest = 0;
          for (std::size_t i = 0; i < count; ++i) {
            // In two steps, as without a fused multiply-add.
            const volatile float product = factor * in[offset + i];
            expected[i] = with_residual ? product + residual[offset + i] : product;
            // Which payload survives of NaN is open, but not that it is one.
            largest =
                std::max(largest, std::isnan(expected[i]) ? 0x7fc00000U : magnitude(expected[i]));
          }
          std::vector<float> out(residual);  // in place
          const std::uint32_t told =
              level().accumulate(out.data() + offset,
                                 in.data() + offset,
                                 with_residual ? out.data() + offset : nullptr,
                                 count,
                                 factor);
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_TRUE(same(expected[i], out[offset + i])) << i << " of " << count;
          }
          if (largest > 0x7f800000) {
            ASSERT_GT(told, 0x7f800000U);
          } else {
            ASSERT_EQ(largest, told) << count;
          }
        }
      }
    }
  }
}

TEST_P(VectorSelect, CollectsWhatReachesTheThresholdInOrder) {
  for (const std::size_t count : kCounts) {
    const std::vector<float> in = any_elements<float>(count, 3);
    for (const float threshold : {0.0F, 1e-40F, 100.0F, 1e4F, INFINITY}) {
      std::vector<float> expected;
      std::vector<std::uint32_t> expected_indices;
      for (std::size_t i = 0; i < count; ++i) {
        if (magnitude(in[i]) >= magnitude(threshold)) {
          expected.push_back(in[i]);
          expected_indices.push_back(static_cast<std::uint32_t>(i) + 0xffff0000U);
        }
      }
      std::vector<float> values(count + 16);
      std::vector<std::uint32_t> indices(count + 16);
      const std::size_t found = level().collect(
          values.data(), indices.data(), in.data(), count, magnitude(threshold), 0xffff0000U);
      ASSERT_EQ(expected.size(), found) << count << " from " << threshold;
      indices.resize(found);
      ASSERT_EQ(expected_indices, indices);
      for (std::size_t i = 0; i < found; ++i) {
        ASSERT_TRUE(same(expected[i], values[i])) << i;
      }
    }
  }
}

TEST_P(VectorSelect, CountsWhatReachesEachThreshold) {
  for (const std::size_t count : kCounts) {
    const std::vector<float> in = any_elements<float>(count, 4);
    const std::vector<std::uint32_t> lows = {
        0, 1, magnitude(100.0F), magnitude(1e4F), magnitude(INFINITY), magnitude(INFINITY) + 1};
    std::vector<std::uint64_t> expected(lows.size(), 5);
    for (std::size_t j = 0; j < lows.size(); ++j) {
      for (const float value : in) {
        expected[j] += static_cast<std::uint64_t>(magnitude(value) >= lows[j]);
      }
    }
    std::vector<std::uint64_t> counts(lows.size(), 5);
    level().count_reaching(counts.data(), in.data(), count, lows.data(), lows.size());
    ASSERT_EQ(expected, counts) << count;
  }
}

TEST_P(VectorSelect, AddsMagnitudesInEightSums) {
  for (const std::size_t count : kCounts) {
    std::vector<float> in(count);
    std::vector<double> expected = {0.5, 0, 0, 0, 0, 0, 0, 1.5};
    std::vector<double> sums(expected);
    for (std::size_t i = 0; i < count; ++i) {
      in[i] = static_cast<float>(i % 3 == 0 ? -0.1 : 0.7) * static_cast<float>(i + 1);
      expected[i % 8] += static_cast<double>(std::fabs(in[i]));
    }
    level().add_magnitudes(sums.data(), in.data(), count);
    ASSERT_EQ(expected, sums) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, VectorSelect, every_level(), NameOfCase());

}  // namespace
}  // namespace aiacc
