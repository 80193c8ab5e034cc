#include "csrc/kernels/half.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// Value of a 16-bit float by the definition of the format. NaN patterns excluded.
double value_of(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = bits & ((1u << fraction_bits) - 1);
  if (exponent == (1 << exponent_bits) - 1) {
    return sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) {
    return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  }
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

struct Format {
  const char* name;
  int exponent_bits;
  int fraction_bits;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);

  std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
  bool is_nan(std::uint32_t bits) const { return (bits & 0x7fffu) > infinity(); }
};

class HalfTest : public testing::TestWithParam<Format> {};

TEST_P(HalfTest, EveryPatternWidensToItsValue) {
  const Format& format = GetParam();
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float wide = format.widen(static_cast<std::uint16_t>(bits));
    if (format.is_nan(bits)) {
      ASSERT_TRUE(std::isnan(wide)) << std::hex << bits;
    } else {
      const auto expected =
          static_cast<float>(value_of(bits, format.exponent_bits, format.fraction_bits));
      ASSERT_EQ(bits_of(expected), bits_of(wide)) << std::hex << bits;
    }
  }
}

TEST_P(HalfTest, EveryPatternSurvivesARoundTrip) {
  const Format& format = GetParam();
  const std::uint32_t quiet = 1u << (format.fraction_bits - 1);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const std::uint16_t back = format.narrow(format.widen(static_cast<std::uint16_t>(bits)));
    const std::uint32_t expected = format.is_nan(bits) ? bits | quiet : bits;
    ASSERT_EQ(expected, back) << std::hex << bits;
  }
}

TEST_P(HalfTest, RoundsToNearestEvenBetweenNeighbours) {
  const Format& format = GetParam();
  for (std::uint32_t low = 0; low + 1 < format.infinity(); ++low) {
    const double below = value_of(low, format.exponent_bits, format.fraction_bits);
    const double above = value_of(low + 1, format.exponent_bits, format.fraction_bits);
    const auto middle = static_cast<float>((below + above) / 2);
    const std::uint32_t even = low + (low & 1u);
    for (const float sign : {1.0f, -1.0f}) {
      const std::uint32_t sign_bit = sign < 0 ? 0x8000u : 0u;
      ASSERT_EQ(sign_bit | even, format.narrow(sign * middle)) << std::hex << low;
      ASSERT_EQ(sign_bit | low, format.narrow(sign * std::nextafter(middle, 0.0f)))
          << std::hex << low;
      ASSERT_EQ(sign_bit | (low + 1), format.narrow(sign * std::nextafter(middle, INFINITY)))
          << std::hex << low;
    }
  }
}

TEST_P(HalfTest, TooLargeBecomesInfinity) {
  const Format& format = GetParam();
  const double largest =
      value_of(format.infinity() - 1, format.exponent_bits, format.fraction_bits);
  const double before = value_of(format.infinity() - 2, format.exponent_bits, format.fraction_bits);
  const auto limit = static_cast<float>(largest + (largest - before) / 2);
  EXPECT_EQ(format.infinity(), format.narrow(limit));
  EXPECT_EQ(format.infinity() - 1, format.narrow(std::nextafter(limit, 0.0f)));
  EXPECT_EQ(format.infinity(), format.narrow(std::numeric_limits<float>::max()));
  EXPECT_EQ(format.infinity() | 0x8000u, format.narrow(-INFINITY));
}

TEST_P(HalfTest, NanStaysNanAndKeepsItsSign) {
  const Format& format = GetParam();
  // The second pattern has payload only in bits that the narrow format drops.
  for (const std::uint32_t pattern : {0x7fc00000u, 0x7f800001u, 0xffffffffu, 0xff800001u}) {
    float nan;
    std::memcpy(&nan, &pattern, sizeof nan);
    const std::uint16_t bits = format.narrow(nan);
    EXPECT_TRUE(format.is_nan(bits)) << std::hex << pattern;
    EXPECT_EQ(pattern >> 31, static_cast<std::uint32_t>(bits) >> 15) << std::hex << pattern;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    HalfTest,
    testing::Values(Format{"float16", 5, 10, half_to_float, float_to_half},
                    Format{"bfloat16", 8, 7, bfloat16_to_float, float_to_bfloat16}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace aiacc
