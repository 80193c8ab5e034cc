// The 16-bit floats, by the functions of half.h and by the kernels of narrow.h on every level, and
// the 8-bit ones by the functions of float8.h, for every pattern and every tie.

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

struct Format {
  WireFormat wire;
  int fraction_bits;
  int exponent_bits;
  std::uint32_t infinity;  ///< what stands for it: of E4M3 its NaN

  std::uint32_t sign() const { return 1U << (fraction_bits + exponent_bits); }
  bool is_infinite(std::uint32_t bits) const {
    return (bits & ~sign()) == infinity && wire != WireFormat::kFloat8E4M3;
  }
  bool is_nan(std::uint32_t bits) const {
    return (bits & ~sign()) >= infinity && !is_infinite(bits);
  }
  /// By the definition of the format; of infinity what would be the next number.
  double value_of(std::uint32_t bits) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double one = (bits & sign()) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>((bits & ~sign()) >> fraction_bits);
    const double fraction = bits & ((1U << fraction_bits) - 1);
    return exponent == 0
               ? one * std::ldexp(fraction, 1 - bias - fraction_bits)
               : one * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  }
};
std::string name_of(const Format& format) { return name_of(format.wire); }

const Format kFormats[] = {{WireFormat::kFloat16, 10, 5, 0x7c00},
                           {WireFormat::kBFloat16, 7, 8, 0x7f80},
                           {WireFormat::kFloat8E4M3, 3, 4, 0x7f},
                           {WireFormat::kFloat8E5M2, 2, 5, 0x7c}};

/// A level, or null for the functions.
using Case = std::tuple<const VectorLevel*, Format>;

class NarrowFloatTest : public testing::TestWithParam<Case> {
 protected:
  /// All at once, so that vectors as well as what is left of them see every value.
  Floats widen_all(const Patterns& bits, double factor = 1.0) const {
    Floats wide(bits.size());
    if (level_ == nullptr) {
      std::transform(bits.begin(), bits.end(), wide.begin(), [this](std::uint16_t one) {
        return widen_plainly(one, format_.wire);
      });
    } else {
      level_->widen(wide.data(), bits.data(), bits.size(), dtype_, factor);
    }
    return wide;
  }
  Patterns narrow_all(const Floats& values, double factor = 1.0) const {
    Patterns bits(values.size());
    if (level_ == nullptr) {
      std::transform(values.begin(), values.end(), bits.begin(), [this](float value) {
        return narrow_plainly(value, format_.wire);
      });
    } else {
      level_->narrow(bits.data(), values.data(), values.size(), dtype_, factor);
    }
    return bits;
  }
  Patterns all_patterns() const {
    Patterns all(2 * format_.sign());
    for (std::size_t bits = 0; bits < all.size(); ++bits) {
      all[bits] = static_cast<std::uint16_t>(bits);
    }
    return all;
  }

  const VectorLevel* const level_ = std::get<0>(GetParam());
  const Format format_ = std::get<1>(GetParam());
  const DataType dtype_ = dtype_on_wire(DataType::kFloat32, format_.wire);
};

TEST_P(NarrowFloatTest, EveryPatternWidensToItsValue) {
  const Patterns all = all_patterns();
  for (const double factor : {1.0, 0.5, 1.0 / 3, 1e6, -2.0}) {
    if (level_ == nullptr && factor != 1.0) {
      break;
    }
    const Floats wide = widen_all(all, factor);
    for (const std::uint32_t bits : all) {
      const float sign = (bits & format_.sign()) != 0 ? -1.0F : 1.0F;
      const float expected = format_.is_nan(bits) ? NAN
                             : format_.is_infinite(bits)
                                 ? std::copysign(INFINITY, sign)
                                 : static_cast<float>(format_.value_of(bits));
      ASSERT_TRUE(same(times(expected, factor), wide[bits])) << std::hex << bits << " " << factor;
    }
  }
}

TEST_P(NarrowFloatTest, EveryPatternSurvivesARoundTrip) {
  const Patterns all = all_patterns();
  const Patterns back = narrow_all(widen_all(all));
  for (const std::uint32_t bits : all) {
    if (!format_.is_nan(bits)) {
      ASSERT_EQ(bits, back[bits]) << std::hex << bits;
    } else if (level_ != nullptr) {
      ASSERT_TRUE(format_.is_nan(back[bits])) << std::hex << bits;
    } else {
      const std::uint32_t quiet = bits | 1U << (format_.fraction_bits - 1);
      ASSERT_EQ(is_float8(format_.wire) ? 0x7f : quiet, back[bits]) << std::hex << bits;
    }
  }
}

/// Between all neighbours, at half the way and next to it, up to what becomes infinity, or what
/// 8-bit floats do not go beyond.
TEST_P(NarrowFloatTest, RoundsToNearestEven) {
  const std::uint32_t most = is_float8(format_.wire) ? format_.infinity - 1 : format_.infinity;
  Floats values;
  Patterns expected;
  const auto add = [&](float value, std::uint32_t bits) {
    values.insert(values.end(), {value, -value});
    expected.push_back(static_cast<std::uint16_t>(std::min(bits, most)));
    expected.push_back(static_cast<std::uint16_t>(std::min(bits, most) | format_.sign()));
  };
  for (std::uint32_t low = 0; low < format_.infinity; ++low) {
    const auto middle = static_cast<float>((format_.value_of(low) + format_.value_of(low + 1)) / 2);
    add(middle, low + (low & 1));
    add(std::nextafter(middle, 0.0F), low);
    add(std::nextafter(middle, INFINITY), low + 1);
  }
  add(0.0F, 0);
  add(std::numeric_limits<float>::denorm_min(), 0);
  add(std::numeric_limits<float>::max(), format_.infinity);
  ASSERT_EQ(expected, narrow_all(values));
  const auto sign = static_cast<std::uint16_t>(format_.sign());
  const auto infinity = static_cast<std::uint16_t>(format_.infinity);
  ASSERT_EQ((Patterns{infinity, static_cast<std::uint16_t>(infinity | sign)}),
            narrow_all({INFINITY, -INFINITY}));
  if (level_ == nullptr) {
    return;
  }
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    values.push_back(float_of(exponent << 23 | 0x7fffff));
  }
  values.insert(values.end(), {INFINITY, -INFINITY});
  for (const double factor : {1.0, 0.5, 1.0 / 7, 3e3, 1e-9, -1.0}) {
    const Patterns got = narrow_all(values, factor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(narrow_plainly(times(values[i], factor), format_.wire), got[i])
          << values[i] << " times " << factor;
    }
  }
}

/// What is between the ties has their order: floats of 12 significant bits, and their neighbours.
TEST_P(NarrowFloatTest, LargerNumbersHaveLargerPatterns) {
  Floats values;
  for (std::uint32_t bits = 0; bits < 0x7f800000; bits += 1 << 12) {
    values.insert(values.end(), {float_of(bits), float_of(bits + 1), float_of(bits + 0xfff)});
  }
  const Patterns got = narrow_all(values);
  ASSERT_TRUE(std::is_sorted(got.begin(), got.end()));
}

TEST_P(NarrowFloatTest, NanStaysNanAndThatOf16BitsKeepsItsSign) {
  // The second pattern has payload only in bits that the narrow format drops.
  for (const std::uint32_t pattern : {0x7fc00000u, 0x7f800001u, 0xffffffffu, 0xff800001u}) {
    for (const std::uint16_t bits : narrow_all(Floats(33, float_of(pattern)))) {
      ASSERT_TRUE(format_.is_nan(bits)) << std::hex << pattern;
      if (is_float8(format_.wire)) {
        ASSERT_EQ(0x7f, bits) << std::hex << pattern;
      } else if (level_ == nullptr) {
        ASSERT_EQ(pattern >> 31, static_cast<std::uint32_t>(bits) >> 15) << std::hex << pattern;
      }
    }
  }
}

TEST_P(NarrowFloatTest, EveryCountAtEveryAddress) {
  if (level_ == nullptr) {
    return;  // functions know one number
  }
  for (const double factor : {1.0, 0.5, 1.0 / 3}) {
    for (const std::size_t count : {0, 1, 2, 3, 15, 16, 17, 31, 33, 511, 513, 1500}) {
      for (const std::size_t offset : {0, 1, 2, 6}) {
        const Floats wide = any_elements<float>(count, 5);
        Placed in(wide, offset);
        Placed narrow(count * 2, offset);
        Placed out(count * 4, offset);
        level_->narrow(narrow.data(), in.data(), count, dtype_, factor);
        level_->widen(out.data(), narrow.data(), count, dtype_, factor);
        const Floats got = out.values<float>();
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint16_t sent = narrow_plainly(times(wide[i], factor), format_.wire);
          const float received = widen_plainly(sent, format_.wire);
          ASSERT_TRUE(same(times(received, factor), got[i])) << i << " of " << count;
        }
        ASSERT_TRUE(narrow.intact() && out.intact());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels,
                         NarrowFloatTest,
                         testing::Combine(every_level(), testing::ValuesIn(kFormats, kFormats + 2)),
                         NameOfCase());
INSTANTIATE_TEST_SUITE_P(Functions,
                         NarrowFloatTest,
                         testing::Combine(testing::Values<const VectorLevel*>(nullptr),
                                          testing::ValuesIn(kFormats)),
                         NameOfCase());

TEST(NarrowFloatApi, OnlyToSixteenBits) {
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
