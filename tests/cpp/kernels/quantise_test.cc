#include "csrc/kernels/quantise.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/float8.h"
#include "tests/cpp/kernels/blocks.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

/// The definition in quantise.h, an element at a time: what `encode_blocks` to nearest writes.
Bytes encode_plainly(const std::vector<float>& in,
                     std::vector<float>* residual,
                     const BlockCode& code,
                     float factor) {
  Bytes wire;
  for (std::size_t at = 0; at < in.size(); at += code.block) {
    const std::size_t n = std::min<std::size_t>(code.block, in.size() - at);
    std::vector<float> sums(n);
    float largest = 0;
    bool finite = true;
    for (std::size_t i = 0; i < n; ++i) {
      const float product = factor * in[at + i];
      sums[i] = residual != nullptr ? product + (*residual)[at + i] : product;
      largest = std::max(largest, std::abs(sums[i]));
      finite = finite && std::isfinite(sums[i]);
    }
    const float scale = finite ? scale_for(largest, code.format) : NAN;
    append(wire, scale);
    std::vector<std::uint8_t> codes(n);
    for (std::size_t i = 0; finite && scale > 0 && i < n; ++i) {
      codes[i] = nearest_code(sums[i] * (1 / scale), code.format);
    }
    for (std::size_t i = 0; finite && residual != nullptr && i < n; ++i) {
      (*residual)[at + i] = sums[i] - value_of(codes[i], code.format) * scale;
    }
    append_codes(wire, codes, code.format);
  }
  return wire;
}

using Case = std::tuple<const VectorLevel*, BlockFormat>;

class QuantiseTest : public testing::TestWithParam<Case> {
 protected:
  static const VectorLevel& level() { return *std::get<0>(GetParam()); }
  static BlockFormat format() { return std::get<1>(GetParam()); }

  static Bytes encode(const std::vector<float>& in,
                      const BlockCode& code,
                      std::vector<float>* residual = nullptr,
                      float factor = 1.0F,
                      const Rounding& rounding = {},
                      std::uint64_t first = 0,
                      const VectorLevel& by = level()) {
    Bytes wire(encoded_bytes(in.size(), code));
    void* const rest = residual != nullptr ? residual->data() : nullptr;
    by.encode_blocks(wire.data(), in.data(), rest, in.size(), code, factor, rounding, first);
    return wire;
  }
  static std::vector<float> decode(const Bytes& wire, std::size_t count, const BlockCode& code) {
    std::vector<float> out(count);
    level().decode_blocks(out.data(), wire.data(), count, code, 1.0F);
    return out;
  }
  /// By stochastic rounding.
  static Bytes by_chance(const std::vector<float>& in,
                         const BlockCode& code,
                         std::uint64_t seed,
                         std::uint64_t first) {
    return encode(in, code, nullptr, 1.0F, {true, seed}, first);
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

TEST_P(QuantiseTest, EncodesAsDefined) {
  for (const std::uint32_t block : {128, 256, 512, 1024}) {
    const BlockCode code = {format(), block};
    for (const std::size_t count : {0, 1, 2, 3, 17, 127, 128, 129, 255, 1024, 1025, 5000}) {
      const std::vector<float> in = random_floats(count, block);
      EXPECT_EQ(encode_plainly(in, nullptr, code, 1.0F), encode(in, code)) << count;
      EXPECT_EQ(encode_plainly(in, nullptr, code, 0.3F), encode(in, code, nullptr, 0.3F)) << count;
      std::vector<float> expected = random_floats(count, 99);
      std::vector<float> residual = expected;
      const Bytes wire = encode_plainly(in, &expected, code, -3.0F);
      EXPECT_EQ(wire, encode(in, code, &residual, -3.0F)) << count;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(same(expected[i], residual[i])) << i << " of " << count;
      }
    }
  }
}

/// Where codes meet, and in any mixture with NaN, infinity and the ends of the range of floats.
TEST_P(QuantiseTest, EncodesTiesAndStrangeNumbersAsDefined) {
  const BlockCode code = {format(), 128};
  std::vector<float> ties;
  for (std::size_t i = 0; i < 4096; ++i) {
    const auto step = static_cast<float>(i % 127);
    const float half = (step + 0.5F) * (format() == BlockFormat::kFloat8E4M3 ? 0x1p-10F : 1.0F);
    const float around[] = {half, std::nextafter(half, 0.0F), std::nextafter(half, INFINITY)};
    ties.push_back(i % 128 == 0 ? largest_of(format()) : around[i % 3] * (i % 2 == 0 ? 1 : -1));
  }
  EXPECT_EQ(encode_plainly(ties, nullptr, code, 1.0F), encode(ties, code));
  for (const std::uint32_t seed : {1, 2, 3}) {
    std::vector<float> strange = any_elements<float>(4096, seed);
    strange.resize(strange.size() - seed);
    std::vector<float> expected(strange.size(), 1.0F);
    std::vector<float> residual = expected;
    EXPECT_EQ(encode_plainly(strange, &expected, code, 1.0F), encode(strange, code, &residual));
    EXPECT_EQ(expected, residual);
    for (float& element : strange) {
      element = std::isfinite(element) ? element : FLT_MAX;
    }
    EXPECT_EQ(encode_plainly(strange, nullptr, code, 1.0F), encode(strange, code));
  }
}

/// All codes of the format, with scales of all sizes, among them those that no encoder writes.
TEST_P(QuantiseTest, DecodesEveryCode) {
  const BlockCode code = {format(), 256};
  for (const float scale : {0.0F, 1.0F, 1.0F / 3, 0x1p-126F, 1e-30F, 2e36F, INFINITY, NAN}) {
    for (const std::size_t count : {256, 255, 77, 1}) {
      std::vector<std::uint8_t> codes(count);
      for (std::size_t i = 0; i < count; ++i) {
        const auto bits = static_cast<std::uint8_t>(i * 7);
        // NaN is said by the scale.
        const bool nan = format() == BlockFormat::kFloat8E4M3 && (bits & 0x7f) == 0x7f;
        codes[i] = nan ? 0 : format() == BlockFormat::kInt4 ? bits & 0xf : bits;
      }
      Bytes wire;
      append(wire, scale);
      append_codes(wire, codes, format());
      const std::vector<float> plain = decode(wire, count, code);
      const std::vector<float> before = random_floats(count, 5);
      std::vector<float> sum = before;
      level().decode_add_blocks(sum.data(), wire.data(), count, code);
      std::vector<float> scaled(count);
      level().decode_blocks(scaled.data(), wire.data(), count, code, 1.0F / 3);
      for (std::size_t i = 0; i < count; ++i) {
        const float decoded = value_of(codes[i], format()) * scale;
        ASSERT_TRUE(same(decoded, plain[i])) << decoded << " and " << plain[i];
        ASSERT_TRUE(same(before[i] + decoded, sum[i])) << decoded << " and " << sum[i];
        ASSERT_TRUE(same(1.0F / 3 * decoded, scaled[i])) << decoded << " and " << scaled[i];
      }
    }
  }
}

/// What is decoded differs by half a step at most, by chance by less than one, and what is sent and
/// what is kept are together what was there: exactly where nearest integers are sent, otherwise
/// within a rounding of what is kept.
TEST_P(QuantiseTest, SentIsNearAndKeptIsTheRest) {
  const BlockCode code = {format(), 256};
  for (const bool stochastic : {false, true}) {
    for (const float size : {1.0F, 1e-30F, 1e30F, 1e-36F, 1e-43F, 1e34F}) {
      std::vector<float> in = random_floats(20000, 11);
      std::vector<float> before = random_floats(20000, 12);
      for (std::size_t i = 0; i < in.size(); ++i) {
        in[i] *= size;
        before[i] *= size / 100;
      }
      std::vector<float> residual = before;
      const Bytes wire = encode(in, code, &residual, 1.0F, {stochastic, 1});
      const std::vector<float> out = decode(wire, in.size(), code);
      const bool exact = format() != BlockFormat::kFloat8E4M3 && !stochastic;
      for (std::size_t i = 0; i < in.size(); ++i) {
        const double t = in[i] + before[i];
        const double scale = scale_of(wire, i, code);
        const double x = std::abs(t) / scale;
        // Reciprocal and product are rounded; draws have 16 bits.
        const double step = step_at(x, format());
        const double bound = (stochastic ? step * (1 + 0x1p-17) : step / 2) + x * 0x1.01p-23;
        ASSERT_LE(std::abs(t - out[i]), bound * scale) << t;
        ASSERT_LE(std::abs(double{out[i]} + residual[i] - t),
                  exact ? 0.0 : std::abs(double{residual[i]}) * 0x1p-24)
            << t << ", " << out[i];
      }
    }
  }
}

TEST_P(QuantiseTest, NothingFiniteComesOfABlockWithNanOrInfinity) {
  const BlockCode code = {format(), 128};
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, FLT_MAX}) {
    for (const std::size_t where : {128, 200, 255}) {
      for (const bool stochastic : {false, true}) {
        std::vector<float> in = random_floats(400, 31);
        in[where] = bad;
        std::vector<float> residual(400, 0.25F);
        residual[where] = FLT_MAX;  // with itself infinite
        const Bytes wire = encode(in, code, &residual, 1.0F, {stochastic, 1});
        const std::vector<float> out = decode(wire, 400, code);
        std::vector<float> sum(400, 1.0F);
        level().decode_add_blocks(sum.data(), wire.data(), 400, code);
        for (std::size_t i = 0; i < 400; ++i) {
          const bool concerned = i >= 128 && i < 256;
          ASSERT_EQ(concerned, std::isnan(out[i])) << i;
          ASSERT_EQ(concerned, std::isnan(sum[i])) << i;
          if (concerned) {
            ASSERT_EQ(i == where ? FLT_MAX : 0.25F, residual[i]);
          }
        }
      }
    }
  }
}

TEST_P(QuantiseTest, EveryCountAtEveryAddress) {
  const BlockCode code = {format(), 128};
  for (const std::size_t count : {1, 2, 15, 16, 31, 33, 65, 127, 128, 129, 191, 300}) {
    for (const std::size_t offset : {1, 2, 7}) {
      const std::vector<float> values = random_floats(count, 41);
      std::vector<float> expected_residual(count, 0.5F);
      const Bytes expected = encode(values, code, &expected_residual);
      Placed in(values, offset);
      Placed residual(std::vector<float>(count, 0.5F), offset);
      Placed wire(expected.size(), offset);
      Placed out(count * 4, offset);
      level().encode_blocks(
          wire.data(), in.data(), residual.data(), count, code, 1.0F, Rounding(), 0);
      EXPECT_EQ(expected, wire.values<unsigned char>());
      EXPECT_EQ(expected_residual, residual.values<float>());
      level().decode_blocks(out.data(), wire.data(), count, code, 1.0F);
      const std::vector<float> decoded = decode(expected, count, code);
      EXPECT_EQ(decoded, out.values<float>());
      level().decode_add_blocks(out.data(), wire.data(), count, code);
      const std::vector<float> twice = out.values<float>();
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(2 * decoded[i], twice[i]);
      }
      ASSERT_TRUE(residual.intact() && wire.intact() && out.intact()) << count << " at " << offset;
    }
  }
}

/// Stochastic rounding. Seeds are fixed: what passes once passes always.
using QuantiseByChanceTest = QuantiseTest;

/// By definition one of two neighbours, the upper one with the probability that makes the mean
/// right. Six standard deviations of the mean of so many, and the documented bias.
TEST_P(QuantiseByChanceTest, TheMeanIsTheNumberItself) {
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
          decode(by_chance(repeated(x, kCount, code), code, 17, 0), kCount, code);
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

TEST_P(QuantiseByChanceTest, NumbersOfTheFormatStay) {
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
  in.resize(2 * 128);
  in.resize(3 * 128);  // zeros in a block of their own
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    ASSERT_EQ(in, decode(by_chance(in, code, seed, seed * 256), in.size(), code));
  }
}

/// Rounding up is no way out of the format, not even where the scale cannot be rounded up.
TEST_P(QuantiseByChanceTest, TheLargestStaysTheLargest) {
  const BlockCode code = {format(), 1024};
  for (const float largest : {FLT_MAX, -FLT_MAX, 1.0F, -1.0F / 3, 1e-30F}) {
    const std::vector<float> in(1 << 16, largest);
    const Bytes wire = by_chance(in, code, 23, 0);
    const float expected = std::copysign(largest_of(format()) * scale_of(wire, 0, code), largest);
    for (const float decoded : decode(wire, in.size(), code)) {
      const double step = step_at(largest_of(format()), format()) * scale_of(wire, 0, code);
      ASSERT_LE(std::abs(decoded), std::abs(expected));
      ASSERT_LE(std::abs(double{decoded} - largest), step * (1 + 0x1p-16)) << largest;
    }
  }
}

/// Also beyond 2^32 elements.
TEST_P(QuantiseByChanceTest, PartsCutBetweenBlocksAreTheSameBits) {
  const BlockCode code = {format(), 128};
  for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 32) - 512}) {
    const std::vector<float> in = random_floats(1500, 6);
    const Bytes whole = by_chance(in, code, 42, first);
    for (const std::ptrdiff_t cut : {128, 512, 640, 1408}) {
      Bytes parts = by_chance({in.begin(), in.begin() + cut}, code, 42, first);
      const Bytes rest = by_chance(
          {in.begin() + cut, in.end()}, code, 42, first + static_cast<std::uint64_t>(cut));
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(whole, parts) << cut;
    }
  }
}

/// The signs of the errors of one number, in pairs of elements, of seeds, of places 2^32 apart:
/// six standard deviations of the mean of so many products of independent signs.
TEST_P(QuantiseByChanceTest, DrawsAreIndependent) {
  const BlockCode code = {format(), 1024};
  constexpr std::size_t kCount = 1 << 16;
  const std::vector<float> in =
      repeated(1.0F + static_cast<float>(step_at(1.0, format())) / 2, kCount, code);
  const auto signs = [&](std::uint64_t seed, std::uint64_t first) {
    std::vector<float> out = decode(by_chance(in, code, seed, first), kCount, code);
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

TEST_P(QuantiseByChanceTest, EveryLevelWritesTheSameBits) {
  const BlockCode code = {format(), 128};
  const Rounding rounding = {true, 9};
  for (const std::size_t count : {1, 50, 128, 1000, 10007}) {
    for (const auto& in : {any_elements<float>(count, 3), random_floats(count, 4)}) {
      std::vector<float> expected(count, 0.125F);
      std::vector<float> residual = expected;
      const Bytes wire = encode(in, code, &expected, -0.7F, rounding, 77, kBaselineLevel);
      EXPECT_EQ(wire, encode(in, code, &residual, -0.7F, rounding, 77));
      EXPECT_EQ(0, std::memcmp(expected.data(), residual.data(), count * 4));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         QuantiseTest,
                         testing::Combine(every_level(), testing::ValuesIn(block_formats())),
                         NameOfCase());
INSTANTIATE_TEST_SUITE_P(All,
                         QuantiseByChanceTest,
                         testing::Combine(every_level(), testing::ValuesIn(block_formats())),
                         NameOfCase());

TEST(QuantiseApi, BytesAreGivenByCountAndCode) {
  EXPECT_EQ(0U, encoded_bytes(0, {BlockFormat::kInt8, 256}));
  EXPECT_EQ(5U, encoded_bytes(1, {BlockFormat::kInt8, 256}));
  EXPECT_EQ(260U, encoded_bytes(256, {BlockFormat::kFloat8E4M3, 256}));
  EXPECT_EQ(265U, encoded_bytes(257, {BlockFormat::kInt8, 256}));
  EXPECT_EQ(5U, encoded_bytes(1, {BlockFormat::kInt4, 128}));
  EXPECT_EQ(68U, encoded_bytes(128, {BlockFormat::kInt4, 128}));
  EXPECT_EQ(74U, encoded_bytes(131, {BlockFormat::kInt4, 128}));
  EXPECT_EQ(25'390'628U, encoded_bytes(25'000'000, {BlockFormat::kInt8, 256}));
}

TEST(QuantiseApi, RefusesCodesThatAreNone) {
  for (const std::uint32_t block : {0, 1, 64, 127, 192, 1000, 2048}) {
    expect_error(status_of([&] { check({BlockFormat::kInt8, block}); }),
                 Code::kInvalidArgument,
                 {"blocks of " + std::to_string(block) + " ", "power of two from 128 to 1024"});
  }
  EXPECT_THROW(check({static_cast<BlockFormat>(3), 256}), Error);
  EXPECT_THROW(encoded_bytes(1, {BlockFormat::kInt4, 130}), Error);
  for (const std::uint32_t block : {128, 256, 512, 1024}) {
    EXPECT_NO_THROW(check({BlockFormat::kInt4, block}));
  }
}

}  // namespace
}  // namespace aiacc
