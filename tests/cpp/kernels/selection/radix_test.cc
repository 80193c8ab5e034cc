#include "csrc/kernels/selection/radix.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/vector/level.h"
#include "tests/cpp/kernels/selection/distributions.h"

namespace aiacc {
namespace {

TEST(Radix, LowIsTheKthLargestMagnitudeAndHighTheNextFloat) {
  for (const Shape shape : all_shapes()) {
    const std::vector<float> elements = elements_of(shape, 3001, 8);
    const std::vector<float> sorted = sorted_magnitudes(elements);
    const Source source(kBaselineLevel, elements.data(), nullptr, elements.size(), 1.0F);
    for (const std::size_t k : {1, 2, 30, 1500, 3000, 3001}) {
      const Bracket bracket = radix_bracket(source, radix_start(source), k);
      const float expected = sorted[k - 1];
      ASSERT_EQ(expected, bracket.low) << "shape " << static_cast<int>(shape) << ", k " << k;
      ASSERT_EQ(std::nextafter(expected, INFINITY), bracket.high);
      ASSERT_EQ(
          static_cast<std::size_t>(std::count_if(
              sorted.begin(), sorted.end(), [&](float magnitude) { return magnitude > expected; })),
          bracket.above);
      ASSERT_EQ(static_cast<std::size_t>(
                    std::count_if(sorted.begin(),
                                  sorted.end(),
                                  [&](float magnitude) { return magnitude >= expected; })),
                bracket.reached);
    }
  }
}

TEST(Radix, EachPassNarrowsTheBin) {
  const std::vector<float> elements = elements_of(Shape::kGaussian, 100000, 9);
  const Source source(kBaselineLevel, elements.data(), nullptr, elements.size(), 1.0F);
  RadixBin bin = radix_start(source);
  EXPECT_EQ(elements.size(), bin.inside);
  for (const int shift : {20, 10, 0}) {
    const RadixBin next = radix_refine(source, bin, 1000);
    EXPECT_EQ(shift, next.shift);
    EXPECT_LE(next.inside, bin.inside / 100 + 1);
    EXPECT_LT(next.above, 1000U);
    EXPECT_GE(next.above + next.inside, 1000U);
    bin = next;
  }
}

}  // namespace
}  // namespace aiacc
