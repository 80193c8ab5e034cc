#include "csrc/kernels/selection/mstopk.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"
#include "tests/cpp/kernels/selection/distributions.h"

namespace aiacc {
namespace {

/// The loop of MSTopK as it is written down, one threshold after the other.
Bracket bisect_plainly(const std::vector<float>& elements,
                       const Magnitudes& magnitudes,
                       std::size_t k,
                       int bisections) {
  Bracket bracket = {std::numeric_limits<float>::infinity(), 0.0F, 0, elements.size()};
  double low = 0.0;
  double high = 1.0;
  for (int i = 0; i < bisections; ++i) {
    const double middle = (low + high) / 2;
    const auto threshold = static_cast<float>(
        magnitudes.mean + middle * (static_cast<double>(magnitudes.largest) - magnitudes.mean));
    std::size_t count = 0;
    for (const float element : elements) {
      count += static_cast<std::size_t>(std::fabs(element) >= threshold);
    }
    if (count <= k) {
      high = middle;
      if (count > bracket.above) {
        bracket.above = count;
        bracket.high = threshold;
      }
    } else {
      low = middle;
      if (count < bracket.reached) {
        bracket.reached = count;
        bracket.low = threshold;
      }
    }
  }
  return bracket;
}

class MstopkTest : public testing::TestWithParam<const VectorLevel*> {
 protected:
  static Source source_of(const std::vector<float>& elements) {
    return {*GetParam(), elements.data(), nullptr, elements.size(), 1.0F};
  }
};

/// To the bit, so no tolerance: (t1, t2) and both counts.
TEST_P(MstopkTest, SeveralLevelsInOnePassAreTheSequentialBisection) {
  for (const Shape shape : all_shapes()) {
    const std::vector<float> elements = elements_of(shape, 6007, 3);
    const Source source = source_of(elements);
    const Magnitudes magnitudes = measure_magnitudes(source);
    for (const std::size_t k : {1, 6, 60, 600, 3000, 6006}) {
      for (const int bisections : {0, 1, 10, 15, 20, 30}) {
        const Bracket expected = bisect_plainly(elements, magnitudes, k, bisections);
        for (const int levels : {1, 4, 5, 6}) {
          const Bracket got = bisect(source, magnitudes, k, bisections, levels);
          ASSERT_TRUE(same(expected.high, got.high) && same(expected.low, got.low))
              << "shape " << static_cast<int>(shape) << ", k " << k << ", " << bisections
              << " bisections, " << levels << " levels: " << got.high << " and " << got.low;
          ASSERT_EQ(expected.above, got.above);
          ASSERT_EQ(expected.reached, got.reached);
        }
      }
    }
  }
}

TEST_P(MstopkTest, TheMeanIsTheSameOnEveryLevel) {
  for (const std::size_t count : {1, 7, 8, 9, 2047, 2049, 10001}) {
    const std::vector<float> elements = elements_of(Shape::kStudent, count, 5);
    const Source plain(kBaselineLevel, elements.data(), nullptr, count, 1.0F);
    const Magnitudes expected = measure_magnitudes(plain);
    const Magnitudes got = measure_magnitudes(source_of(elements));
    EXPECT_TRUE(same(expected.mean, got.mean)) << count;
    double sum = 0.0;
    for (const float element : elements) {
      sum += std::fabs(static_cast<double>(element));
    }
    EXPECT_NEAR(sum / static_cast<double>(count), got.mean, 1e-12 * got.mean) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, MstopkTest, every_level(), NameOfCase());

}  // namespace
}  // namespace aiacc
