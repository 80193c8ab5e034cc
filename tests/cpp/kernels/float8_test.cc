#include "csrc/kernels/float8.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Values of the patterns 0 .. largest, by the definition of the formats.
template <class F>
std::vector<double> values() {
  std::vector<double> list;
  for (std::uint32_t bits = 0; bits <= F::kLargest; ++bits) {
    const int exponent = static_cast<int>(bits >> F::kFractionBits);
    const double fraction = std::ldexp(bits & ((1u << F::kFractionBits) - 1), -F::kFractionBits);
    list.push_back(exponent == 0 ? std::ldexp(fraction, 1 - F::kBias)
                                 : std::ldexp(1 + fraction, exponent - F::kBias));
  }
  return list;
}

/// The nearest pattern to a number that is not negative, found by looking at all of them.
template <class F>
std::uint32_t nearest(double value) {
  static const std::vector<double> list = values<F>();
  std::uint32_t best = 0;
  for (std::uint32_t bits = 1; bits < list.size(); ++bits) {
    const double closer = std::abs(list[best] - value) - std::abs(list[bits] - value);
    if (closer > 0 || (closer == 0 && bits % 2 == 0)) {
      best = bits;
    }
  }
  return best;
}

template <class F>
class Float8Test : public testing::Test {};
using Formats = testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8Test, Formats);

TYPED_TEST(Float8Test, WidensEveryPattern) {
  const std::vector<double> expected = values<TypeParam>();
  for (std::uint32_t bits = 0; bits < expected.size(); ++bits) {
    const auto positive = static_cast<std::uint8_t>(bits);
    const auto negative = static_cast<std::uint8_t>(bits | 0x80);
    ASSERT_EQ(expected[bits], widen_float8(TypeParam{positive})) << bits;
    ASSERT_EQ(-expected[bits], widen_float8(TypeParam{negative})) << bits;
    ASSERT_TRUE(std::signbit(widen_float8(TypeParam{negative}))) << bits;
  }
  for (std::uint32_t bits = TypeParam::kLargest + 1; bits < 0x80; ++bits) {
    const float wide = widen_float8(TypeParam{static_cast<std::uint8_t>(bits)});
    if (bits == 0x7c && TypeParam::kInfinity == 0x7c) {
      EXPECT_EQ(kInf, wide);
    } else {
      EXPECT_TRUE(std::isnan(wide)) << bits;
    }
  }
}

TYPED_TEST(Float8Test, RoundsToTheNearestEvenPattern) {
  // All floats with 9 significant bits between the smallest and beyond the largest: they contain
  // every number of the format, every tie, and what lies on both sides of one.
  for (int exponent = -26; exponent <= 18; ++exponent) {
    for (int step = 256; step < 512; ++step) {
      const auto value = static_cast<float>(std::ldexp(step, exponent - 8));
      for (const float x : {value, std::nextafter(value, 0.0f), std::nextafter(value, kInf)}) {
        const std::uint32_t expected = nearest<TypeParam>(x);
        ASSERT_EQ(expected, narrow_float8<TypeParam>(x).bits) << std::hexfloat << x;
        ASSERT_EQ(expected | 0x80, narrow_float8<TypeParam>(-x).bits) << std::hexfloat << -x;
      }
    }
  }
}

TYPED_TEST(Float8Test, LargeNumbersSaturateInfinityStaysVisibleAndZeroKeepsItsSign) {
  const auto narrow = [](float value) { return narrow_float8<TypeParam>(value).bits; };
  EXPECT_EQ(TypeParam::kLargest, narrow(std::numeric_limits<float>::max()));
  EXPECT_EQ(TypeParam::kLargest | 0x80, narrow(std::numeric_limits<float>::lowest()));
  EXPECT_EQ(TypeParam::kInfinity, narrow(kInf));
  EXPECT_EQ(TypeParam::kInfinity | 0x80, narrow(-kInf));
  EXPECT_EQ(0x7f, narrow(kNan));
  EXPECT_EQ(0x7f, narrow(-kNan));
  EXPECT_EQ(0, narrow(0.0f));
  EXPECT_EQ(0x80, narrow(-0.0f));
  EXPECT_EQ(0, narrow(std::numeric_limits<float>::denorm_min()));
  EXPECT_EQ(0x80, narrow(-1e-30f));
}

}  // namespace
}  // namespace aiacc
