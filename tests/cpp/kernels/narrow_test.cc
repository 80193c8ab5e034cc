#include "csrc/kernels/narrow.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/vector/level.h"
#include "tests/cpp/kernels/elements.h"

namespace aiacc {
namespace {

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// As kernels/scale.h has it.
float times(float value, double factor) {
  for (const int divisor : {3, 7}) {
    if (factor == 1.0 / divisor) {
      return value / static_cast<float>(divisor);
    }
  }
  return value * static_cast<float>(factor);
}

using Case = std::tuple<const VectorLevel*, DataType>;

class NarrowTest : public testing::TestWithParam<Case> {
 protected:
  static const VectorLevel& level() { return *std::get<0>(GetParam()); }
  static DataType dtype() { return std::get<1>(GetParam()); }
  static std::uint16_t narrowed(float value) {
    return dtype() == DataType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value);
  }
  static float widened(std::uint16_t bits) {
    return dtype() == DataType::kFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
  }
  static bool is_nan(std::uint16_t bits) { return std::isnan(widened(bits)); }

  /// All of them at once, so that vectors as well as what is left of them see every value.
  static void expect_narrowed(const std::vector<float>& values, double factor) {
    std::vector<std::uint16_t> got(values.size());
    level().narrow(got.data(), values.data(), values.size(), dtype(), factor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t expected = narrowed(factor == 1.0 ? values[i] : times(values[i], factor));
      ASSERT_TRUE(expected == got[i] || (is_nan(expected) && is_nan(got[i])))
          << values[i] << " times " << factor << ": " << std::hex << expected << " and " << got[i];
    }
  }
};

TEST_P(NarrowTest, EveryPatternWidensToItsValue) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t bits = 0; bits < all.size(); ++bits) {
    all[bits] = static_cast<std::uint16_t>(bits);
  }
  std::vector<float> got(all.size());
  level().widen(got.data(), all.data(), all.size(), dtype(), 1.0);
  for (std::size_t bits = 0; bits < all.size(); ++bits) {
    ASSERT_TRUE(same(widened(all[bits]), got[bits])) << std::hex << bits;
  }
  for (const double factor : {0.5, 1.0 / 3, 1e6, -2.0}) {
    level().widen(got.data(), all.data(), all.size(), dtype(), factor);
    for (std::size_t bits = 0; bits < all.size(); ++bits) {
      ASSERT_TRUE(same(times(widened(all[bits]), factor), got[bits]))
          << std::hex << bits << " times " << factor;
    }
  }
}

TEST_P(NarrowTest, EveryPatternSurvivesARoundTrip) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t bits = 0; bits < all.size(); ++bits) {
    all[bits] = static_cast<std::uint16_t>(bits);
  }
  std::vector<float> wide(all.size());
  std::vector<std::uint16_t> back(all.size());
  level().widen(wide.data(), all.data(), all.size(), dtype(), 1.0);
  level().narrow(back.data(), wide.data(), wide.size(), dtype(), 1.0);
  for (std::size_t bits = 0; bits < all.size(); ++bits) {
    ASSERT_TRUE(all[bits] == back[bits] || (is_nan(all[bits]) && is_nan(back[bits])))
        << std::hex << bits;
  }
}

/// What lies between two neighbours, at half the way and next to it; beyond the largest; NaN.
TEST_P(NarrowTest, RoundsAsTheFormatsDo) {
  std::vector<float> values = {INFINITY, -INFINITY, NAN, -NAN, float_of(0x7f800001)};
  for (std::uint32_t bits = 0; bits < 65535; ++bits) {
    const float low = widened(static_cast<std::uint16_t>(bits));
    const float high = widened(static_cast<std::uint16_t>(bits + 1));
    if (!std::isfinite(low)) {
      continue;
    }
    // Above the largest number there is as much room as below it.
    const double middle =
        std::isfinite(high)
            ? (double{low} + high) / 2
            : low + (double{low} - widened(static_cast<std::uint16_t>(bits - 1))) / 2;
    const auto between = static_cast<float>(middle);
    values.insert(values.end(),
                  {between, std::nextafter(between, 0.0F), std::nextafter(between, between * 2)});
  }
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    values.push_back(float_of(exponent << 23 | 0x7fffff));
  }
  expect_narrowed(values, 1.0);
  for (const double factor : {0.5, 1.0 / 7, 3e3, 1e-9, -1.0}) {
    expect_narrowed(values, factor);
  }
}

TEST_P(NarrowTest, EveryCountAtEveryAddress) {
  for (const double factor : {1.0, 0.5, 1.0 / 3}) {
    for (const std::size_t count : {0, 1, 2, 3, 15, 16, 17, 31, 33, 511, 513, 1500}) {
      for (const std::size_t offset : {0, 1, 2, 6}) {
        const std::vector<float> wide = any_elements<float>(count, 5);
        std::vector<unsigned char> in(count * 4 + offset + 1);
        std::copy_n(
            reinterpret_cast<const unsigned char*>(wide.data()), count * 4, in.data() + offset);
        std::vector<unsigned char> narrow(count * 2 + offset + 1, 0x5a);
        level().narrow(narrow.data() + offset, in.data() + offset, count, dtype(), factor);
        std::vector<unsigned char> out(count * 4 + offset + 1, 0x5a);
        level().widen(out.data() + offset, narrow.data() + offset, count, dtype(), factor);
        for (std::size_t i = 0; i < count; ++i) {
          float got;
          std::memcpy(&got, out.data() + offset + i * 4, sizeof got);
          const float sent = widened(narrowed(times(wide[i], factor)));
          ASSERT_TRUE(same(times(sent, factor), got)) << i << " of " << count << ", " << wide[i];
        }
        ASSERT_EQ(0x5a, narrow.back());
        ASSERT_EQ(0x5a, out.back());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         NarrowTest,
                         testing::Combine(testing::ValuesIn(runnable_vector_levels()),
                                          testing::Values(DataType::kFloat16, DataType::kBFloat16)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)->name) + "_" +
                                  name_of(std::get<1>(test.param));
                         });

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
