// Stochastic rounding of csrc/kernels/quantise.h. Seeds are fixed: what passes once passes always.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/quantise.h"
#include "tests/cpp/kernels/blocks.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"

namespace aiacc {
namespace {

using Case = std::tuple<const VectorLevel*, BlockFormat>;

class QuantiseStochasticTest : public testing::TestWithParam<Case> {
 protected:
  static const VectorLevel& level() { return *std::get<0>(GetParam()); }
  static BlockFormat format() { return std::get<1>(GetParam()); }

  static Bytes encode(const std::vector<float>& in,
                      const BlockCode& code,
                      std::uint64_t seed,
                      std::uint64_t first_index,
                      std::vector<float>* residual = nullptr) {
    return encode_at(level(), in, code, residual, 1.0F, {true, seed}, first_index);
  }

  /// Blocks that begin with the largest number of the format, so that their scale is 1; then `x`.
  static std::vector<float> repeated(float x, std::size_t count, const BlockCode& code) {
    std::vector<float> in(count, x);
    for (std::size_t i = 0; i < count; i += code.block) {
      in[i] = largest_of(format());
    }
    return in;
  }
};

/// By definition one of two neighbours, the upper one with the probability that makes the mean
/// right. Six standard deviations of the mean of so many, and the documented bias.
TEST_P(QuantiseStochasticTest, TheMeanIsTheNumberItself) {
  const BlockCode code = {format(), 1024};
  constexpr std::size_t kCount = 1 << 18;
  for (const double part : {1.0 / 512, 0.1, 1.0 / 3, 0.5, 0.9}) {
    for (const double base : {0.0, 1.0, -3.0, -6.0, 5.0, 0x1p-9, 0x1p-6, -96.0, 126.0, 352.0}) {
      const double step = step_at(std::abs(base), format());
      if (std::abs(base) >= largest_of(format()) || std::remainder(base, step) != 0) {
        continue;  // no number of this format
      }
      const auto x = static_cast<float>(base < 0 ? base - part * step : base + part * step);
      const std::vector<float> out =
          decode_at(level(), encode(repeated(x, kCount, code), code, 17, 0), kCount, code);
      double sum = 0;
      std::size_t drawn = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        if (i % code.block != 0) {
          ASSERT_LT(std::abs(double{out[i]} - x), step) << x;
          sum += double{out[i]} - x;
          ++drawn;
        }
      }
      const auto n = static_cast<double>(drawn);
      const double bound = 6 * step * std::sqrt(part * (1 - part) / n) + step * 0x1p-17;
      EXPECT_LE(std::abs(sum / n), bound) << x;
    }
  }
}

TEST_P(QuantiseStochasticTest, NumbersOfTheFormatStay) {
  const BlockCode code = {format(), 128};
  std::vector<float> in;
  for (int i = 0; i < 256; ++i) {
    if (i % 128 == 0) {
      in.push_back(largest_of(format()));
    }
    const auto bits = static_cast<std::uint8_t>(i);
    const float x = value_of(bits, format());
    in.push_back(std::abs(x) <= largest_of(format()) ? x : 0.0F);
  }
  in.resize(256);
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    ASSERT_EQ(in, decode_at(level(), encode(in, code, seed, seed * 256), 256, code));
  }
}

TEST_P(QuantiseStochasticTest, ErrorsAreLessThanAStepAndAreKept) {
  const BlockCode code = {format(), 256};
  const std::vector<float> in = random_floats(50000, 5);
  std::vector<float> residual(in.size());
  const Bytes wire = encode(in, code, 3, 0, &residual);
  const std::vector<float> out = decode_at(level(), wire, in.size(), code);
  std::size_t farther = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double scale = scale_of(wire, i, code);
    const double error = std::abs(double{in[i]} - out[i]);
    // Up to the next power of two steps are as long as here.
    const double step = step_at(std::abs(in[i]) / scale, format()) * scale;
    ASSERT_LE(error, step * (1 + 0x1p-17)) << in[i];
    ASSERT_LE(std::abs(double{out[i]} + residual[i] - in[i]), std::abs(residual[i]) * 0x1p-24);
    farther += error > 0.51 * step ? 1 : 0;
  }
  EXPECT_GT(farther, in.size() / 10) << "a quarter is expected";
}

/// Rounding up is no way out of the format, not even where the scale cannot be rounded up.
TEST_P(QuantiseStochasticTest, TheLargestStaysTheLargest) {
  const BlockCode code = {format(), 1024};
  for (const float largest : {FLT_MAX, -FLT_MAX, 1.0F, -1.0F / 3, 1e-30F}) {
    const std::vector<float> in(1 << 16, largest);
    const Bytes wire = encode(in, code, 23, 0);
    const float expected = std::copysign(largest_of(format()) * scale_of(wire, 0, code), largest);
    for (const float decoded : decode_at(level(), wire, in.size(), code)) {
      const double step = step_at(largest_of(format()), format()) * scale_of(wire, 0, code);
      ASSERT_LE(std::abs(decoded), std::abs(expected));
      ASSERT_LE(std::abs(double{decoded} - largest), step * (1 + 0x1p-16)) << largest;
    }
  }
}

/// Also beyond 2^32 elements.
TEST_P(QuantiseStochasticTest, PartsCutBetweenBlocksAreTheSameBits) {
  const BlockCode code = {format(), 128};
  for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 32) - 512}) {
    const std::vector<float> in = random_floats(1500, 6);
    const Bytes whole = encode(in, code, 42, first);
    for (const std::ptrdiff_t cut : {128, 512, 640, 1408}) {
      Bytes parts = encode({in.begin(), in.begin() + cut}, code, 42, first);
      const Bytes rest =
          encode({in.begin() + cut, in.end()}, code, 42, first + static_cast<std::uint64_t>(cut));
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(whole, parts) << cut;
    }
  }
}

/// The signs of the errors of one number, in pairs of elements, of seeds, of places 2^32 apart:
/// six standard deviations of the mean of so many products of independent signs.
TEST_P(QuantiseStochasticTest, DrawsAreIndependent) {
  const BlockCode code = {format(), 1024};
  constexpr std::size_t kCount = 1 << 16;
  const std::vector<float> in =
      repeated(1.0F + static_cast<float>(step_at(1.0, format())) / 2, kCount, code);
  const auto signs = [&](std::uint64_t seed, std::uint64_t first) {
    std::vector<float> out = decode_at(level(), encode(in, code, seed, first), kCount, code);
    for (std::size_t i = 0; i < kCount; ++i) {
      out[i] = out[i] > in[i] ? 1.0F : -1.0F;
    }
    return out;
  };
  const auto correlation =
      [](const std::vector<float>& a, const std::vector<float>& b, std::size_t lag) {
        double sum = 0;
        double drawn = 0;
        for (std::size_t i = 0; i + lag < kCount; ++i) {
          if (i % 1024 != 0 && (i + lag) % 1024 != 0) {
            sum += a[i] * b[i + lag];
            drawn += 1;
          }
        }
        return std::abs(sum) / std::sqrt(drawn);
      };
  const std::vector<float> one = signs(1, 0);
  for (const std::size_t lag : {1, 2, 3, 16, 64, 128, 1024, 4096}) {
    EXPECT_LT(correlation(one, one, lag), 6) << lag;
  }
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_LT(correlation(one, signs(1 ^ std::uint64_t{1} << bit, 0), 0), 6) << bit;
  }
  EXPECT_LT(correlation(one, signs(2, 0), 1), 6);
  EXPECT_LT(correlation(one, signs(1, std::uint64_t{1} << 32), 0), 6);
  EXPECT_LT(correlation(one, signs(1, kCount), 0), 6);
}

INSTANTIATE_TEST_SUITE_P(All,
                         QuantiseStochasticTest,
                         testing::Combine(every_level(), testing::ValuesIn(block_formats())),
                         NameOfCase());

TEST(QuantiseLevels, GiveTheSameBits) {
  for (const VectorLevel* level : runnable_vector_levels()) {
    for (const BlockFormat format : block_formats()) {
      for (const std::size_t count : {1, 50, 128, 1000, 10007}) {
        const BlockCode code = {format, 128};
        for (const auto& in : {any_elements<float>(count, 3), random_floats(count, 4)}) {
          std::vector<float> expected_residual(count, 0.125F);
          std::vector<float> residual = expected_residual;
          const Rounding rounding = {true, 9};
          const Bytes expected =
              encode_at(kBaselineLevel, in, code, &expected_residual, -0.7F, rounding, 77);
          EXPECT_EQ(expected, encode_at(*level, in, code, &residual, -0.7F, rounding, 77))
              << level->name << " " << name_of(format);
          EXPECT_EQ(0, std::memcmp(expected_residual.data(), residual.data(), count * 4));
        }
      }
    }
  }
}

}  // namespace
}  // namespace aiacc
