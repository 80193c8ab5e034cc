// Both 16-bit floats, by the functions of half.h and by the kernels of narrow.h on every level, for
// every pattern and every tie.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/narrow.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"

namespace aiacc {
namespace {

using Patterns = std::vector<std::uint16_t>;
using Floats = std::vector<float>;

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// A level, or null for the functions of half.h.
using Case = std::tuple<const VectorLevel*, DataType>;

class Float16Test : public testing::TestWithParam<Case> {
 protected:
  static const VectorLevel* level() { return std::get<0>(GetParam()); }
  static DataType dtype() { return std::get<1>(GetParam()); }
  static bool is_half() { return dtype() == DataType::kFloat16; }
  static int fraction_bits() { return is_half() ? 10 : 7; }
  static std::uint32_t infinity() { return is_half() ? 0x7c00 : 0x7f80; }
  static bool is_nan(std::uint32_t bits) { return (bits & 0x7fff) > infinity(); }

  static float widen_one(std::uint16_t bits) {
    return is_half() ? half_to_float(bits) : bfloat16_to_float(bits);
  }
  static std::uint16_t narrow_one(float value) {
    return is_half() ? float_to_half(value) : float_to_bfloat16(value);
  }
  /// All at once, so that vectors as well as what is left of them see every value.
  static Floats widen_all(const Patterns& bits, double factor = 1.0) {
    Floats wide(bits.size());
    if (level() == nullptr) {
      std::transform(bits.begin(), bits.end(), wide.begin(), widen_one);
    } else {
      level()->widen(wide.data(), bits.data(), bits.size(), dtype(), factor);
    }
    return wide;
  }
  static Patterns narrow_all(const Floats& values, double factor = 1.0) {
    Patterns bits(values.size());
    if (level() == nullptr) {
      std::transform(values.begin(), values.end(), bits.begin(), narrow_one);
    } else {
      level()->narrow(bits.data(), values.data(), values.size(), dtype(), factor);
    }
    return bits;
  }
  static Patterns all_patterns() {
    Patterns all(65536);
    for (std::size_t bits = 0; bits < all.size(); ++bits) {
      all[bits] = static_cast<std::uint16_t>(bits);
    }
    return all;
  }
  /// By the definition of the format; of infinity what would be the next number.
  static double value_of(std::uint32_t bits) {
    const int exponent_bits = 15 - fraction_bits();
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>(bits >> fraction_bits()) & ((1 << exponent_bits) - 1);
    const double fraction = bits & ((1u << fraction_bits()) - 1);
    return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias - fraction_bits())
                         : sign * std::ldexp(fraction + (1 << fraction_bits()),
                                             exponent - bias - fraction_bits());
  }
};

TEST_P(Float16Test, EveryPatternWidensToItsValue) {
  const Patterns all = all_patterns();
  for (const double factor : {1.0, 0.5, 1.0 / 3, 1e6, -2.0}) {
    if (level() == nullptr && factor != 1.0) {
      break;
    }
    const Floats wide = widen_all(all, factor);
    for (std::uint32_t bits = 0; bits < all.size(); ++bits) {
      const bool is_infinite = (bits & 0x7fff) == infinity();
      const float expected = is_nan(bits)  ? NAN
                             : is_infinite ? std::copysign(INFINITY, bits >> 15 ? -1.0F : 1.0F)
                                           : static_cast<float>(value_of(bits));
      ASSERT_TRUE(same(times(expected, factor), wide[bits])) << std::hex << bits << " " << factor;
    }
  }
}

TEST_P(Float16Test, EveryPatternSurvivesARoundTrip) {
  const Patterns all = all_patterns();
  const Patterns back = narrow_all(widen_all(all));
  for (std::uint32_t bits = 0; bits < all.size(); ++bits) {
    if (is_nan(bits) && level() == nullptr) {
      ASSERT_EQ(bits | 1u << (fraction_bits() - 1), back[bits]) << std::hex << bits;
    } else {
      ASSERT_TRUE(bits == back[bits] || (is_nan(bits) && is_nan(back[bits]))) << std::hex << bits;
    }
  }
}

/// Between all neighbours, at half the way and next to it, up to what becomes infinity.
TEST_P(Float16Test, RoundsToNearestEven) {
  Floats values;
  Patterns expected;
  for (std::uint32_t low = 0; low < infinity(); ++low) {
    const auto middle = static_cast<float>((value_of(low) + value_of(low + 1)) / 2);
    for (const std::uint32_t sign : {0U, 0x8000U}) {
      const float direction = sign == 0 ? 1.0F : -1.0F;
      values.insert(values.end(),
                    {direction * middle,
                     direction * std::nextafter(middle, 0.0F),
                     direction * std::nextafter(middle, INFINITY)});
      for (const std::uint32_t bits : {low + (low & 1), low, low + 1}) {
        expected.push_back(static_cast<std::uint16_t>(sign | bits));
      }
    }
  }
  for (const float huge : {std::numeric_limits<float>::max(), INFINITY}) {
    values.insert(values.end(), {huge, -huge});
    expected.push_back(static_cast<std::uint16_t>(infinity()));
    expected.push_back(static_cast<std::uint16_t>(infinity() | 0x8000));
  }
  ASSERT_EQ(expected, narrow_all(values));
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    values.push_back(float_of(exponent << 23 | 0x7fffff));
  }
  for (const double factor : {1.0, 0.5, 1.0 / 7, 3e3, 1e-9, -1.0}) {
    if (level() != nullptr) {
      const Patterns got = narrow_all(values, factor);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(narrow_one(times(values[i], factor)), got[i]) << values[i] << " times " << factor;
      }
    }
  }
}

TEST_P(Float16Test, NanStaysNanAndKeepsItsSign) {
  // The second pattern has payload only in bits that the narrow format drops.
  for (const std::uint32_t pattern : {0x7fc00000u, 0x7f800001u, 0xffffffffu, 0xff800001u}) {
    for (const std::uint16_t bits : narrow_all(Floats(33, float_of(pattern)))) {
      ASSERT_TRUE(is_nan(bits)) << std::hex << pattern;
      if (level() == nullptr) {
        ASSERT_EQ(pattern >> 31, static_cast<std::uint32_t>(bits) >> 15) << std::hex << pattern;
      }
    }
  }
}

TEST_P(Float16Test, EveryCountAtEveryAddress) {
  if (level() == nullptr) {
    return;  // they know one number
  }
  for (const double factor : {1.0, 0.5, 1.0 / 3}) {
    for (const std::size_t count : {0, 1, 2, 3, 15, 16, 17, 31, 33, 511, 513, 1500}) {
      for (const std::size_t offset : {0, 1, 2, 6}) {
        const Floats wide = any_elements<float>(count, 5);
        Placed in(wide, offset);
        Placed narrow(count * 2, offset);
        Placed out(count * 4, offset);
        level()->narrow(narrow.data(), in.data(), count, dtype(), factor);
        level()->widen(out.data(), narrow.data(), count, dtype(), factor);
        const Floats got = out.values<float>();
        for (std::size_t i = 0; i < count; ++i) {
          const float sent = widen_one(narrow_one(times(wide[i], factor)));
          ASSERT_TRUE(same(times(sent, factor), got[i])) << i << " of " << count;
        }
        ASSERT_TRUE(narrow.intact() && out.intact());
      }
    }
  }
}

const auto kFormats = testing::Values(DataType::kFloat16, DataType::kBFloat16);
INSTANTIATE_TEST_SUITE_P(Levels,
                         Float16Test,
                         testing::Combine(every_level(), kFormats),
                         NameOfCase());
INSTANTIATE_TEST_SUITE_P(Functions,
                         Float16Test,
                         testing::Combine(testing::Values<const VectorLevel*>(nullptr), kFormats),
                         NameOfCase());

TEST(NarrowApi, OnlyToSixteenBits) {
  const float in[] = {1.0F, 65520.0F, 65519.0F};
  std::uint16_t sent[3];
  narrow(sent, in, 3, DataType::kFloat16, 1.0);
  float out[3];
  widen(out, sent, 3, DataType::kFloat16, 2.0);
  EXPECT_EQ(2.0F, out[0]);
  EXPECT_EQ(INFINITY, out[1]) << "half the way beyond the largest number";
  EXPECT_EQ(131008.0F, out[2]);
  EXPECT_THROW(narrow(sent, in, 3, DataType::kFloat32, 1.0), Error);
  EXPECT_THROW(widen(out, sent, 3, DataType::kInt16, 1.0), Error);
}

}  // namespace
}  // namespace aiacc
