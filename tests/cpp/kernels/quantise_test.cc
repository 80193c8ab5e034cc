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

#include "csrc/base/error.h"
#include "csrc/kernels/float8.h"
#include "tests/cpp/kernels/blocks.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"

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
                      float factor = 1.0F) {
    return encode_at(level(), in, code, residual, factor, Rounding(), 0);
  }
  static std::vector<float> decode(const Bytes& wire, std::size_t count, const BlockCode& code) {
    return decode_at(level(), wire, count, code);
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

/// What is decoded differs by half a step at most, and what is sent and what is kept are together
/// what was there: exactly where both are rounded to integers, within a rounding of what is kept
/// for the 8-bit float.
TEST_P(QuantiseTest, SentIsNearAndKeptIsTheRest) {
  const BlockCode code = {format(), 256};
  for (const float size : {1.0F, 1e-30F, 1e30F, 1e-36F, 1e-43F, 1e34F}) {
    std::vector<float> in = random_floats(20000, 11);
    std::vector<float> before = random_floats(20000, 12);
    for (std::size_t i = 0; i < in.size(); ++i) {
      in[i] *= size;
      before[i] *= size / 100;
    }
    std::vector<float> residual = before;
    const Bytes wire = encode(in, code, &residual);
    const std::vector<float> out = decode(wire, in.size(), code);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const double t = in[i] + before[i];
      const double scale = scale_of(wire, i, code);
      const double x = std::abs(t) / scale;
      // Reciprocal and product are rounded.
      const double bound = step_at(x, format()) / 2 + x * 0x1.01p-23;
      ASSERT_LE(std::abs(t - out[i]), bound * scale) << t;
      const double rounding =
          format() == BlockFormat::kFloat8E4M3 ? std::abs(double{residual[i]}) * 0x1p-24 : 0.0;
      ASSERT_LE(std::abs(double{out[i]} + residual[i] - t), rounding) << t << ", " << out[i];
    }
  }
}

TEST_P(QuantiseTest, DecodedIsEncodedAsTheSame) {
  const BlockCode code = {format(), 256};
  for (const float size : {1.0F, 1e-30F, 1e-36F, 1e-41F, 1e35F}) {
    std::vector<float> in = random_floats(30001, 21);
    std::transform(in.begin(), in.end(), in.begin(), [&](float x) { return x * size; });
    in[0] = FLT_MAX;
    const Bytes wire = encode(in, code);
    const std::vector<float> out = decode(wire, in.size(), code);
    const Bytes again = encode(out, code);
    EXPECT_EQ(out, decode(again, in.size(), code)) << size;
    if (size > 1e-40F) {  // below, whole blocks become zeros, and have another scale afterwards
      EXPECT_EQ(wire, again) << size;
    }
    std::vector<float> residual(in.size());
    encode(out, code, &residual);
    EXPECT_EQ(std::vector<float>(in.size()), residual) << size;
  }
}

TEST_P(QuantiseTest, ZerosStayZeros) {
  const BlockCode code = {format(), 128};
  std::vector<float> in(300);
  in[3] = -0.0F;
  in[299] = largest_of(format());
  for (const bool stochastic : {false, true}) {
    const Bytes wire = encode_at(level(), in, code, nullptr, 1.0F, {stochastic, 1}, 0);
    EXPECT_EQ(0.0F, scale_of(wire, 0, code));
    const std::vector<float> out = decode(wire, 300, code);
    EXPECT_EQ(in, out);
  }
}

TEST_P(QuantiseTest, TinyAndHugeNumbersStayFinite) {
  const BlockCode code = {format(), 128};
  for (const float largest : {FLT_TRUE_MIN, 100 * FLT_TRUE_MIN, FLT_MIN, 1e-36F, 1e-35F, FLT_MAX}) {
    std::vector<float> in(128);
    for (std::size_t i = 0; i < in.size(); ++i) {
      in[i] = largest / static_cast<float>(1 + i) * (i % 2 == 0 ? 1.0F : -1.0F);
    }
    for (const bool stochastic : {false, true}) {
      std::vector<float> residual(128);
      const Bytes wire = encode_at(level(), in, code, &residual, 1.0F, {stochastic, 1}, 0);
      const double scale = scale_of(wire, 0, code);
      EXPECT_GE(scale, FLT_MIN);
      const std::vector<float> out = decode(wire, 128, code);
      for (std::size_t i = 0; i < in.size(); ++i) {
        ASSERT_TRUE(std::isfinite(out[i])) << in[i];
        const double step = step_at(std::abs(in[i]) / scale, format()) * scale;
        ASSERT_LE(std::abs(double{in[i]} - out[i]), step * (stochastic ? 1.0 : 0.50001)) << in[i];
        ASSERT_EQ(in[i] - out[i], residual[i]);
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
        const Bytes wire = encode_at(level(), in, code, &residual, 1.0F, {stochastic, 1}, 0);
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

INSTANTIATE_TEST_SUITE_P(All,
                         QuantiseTest,
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
    try {
      check({BlockFormat::kInt8, block});
      FAIL() << block;
    } catch (const Error& error) {
      EXPECT_EQ(Code::kInvalidArgument, error.code());
      const std::string text = error.what();
      EXPECT_NE(std::string::npos, text.find("blocks of " + std::to_string(block) + " "));
      EXPECT_NE(std::string::npos, text.find("power of two from 128 to 1024"));
    }
  }
  EXPECT_THROW(check({static_cast<BlockFormat>(3), 256}), Error);
  EXPECT_THROW(encoded_bytes(1, {BlockFormat::kInt4, 130}), Error);
  for (const std::uint32_t block : {128, 256, 512, 1024}) {
    EXPECT_NO_THROW(check({BlockFormat::kInt4, block}));
  }
}

TEST(QuantiseApi, CallsTheWidestLevel) {
  const BlockCode code = {BlockFormat::kInt8, 128};
  const std::vector<float> in = random_floats(500, 1);
  const VectorLevel& widest = *runnable_vector_levels().front();
  const Rounding rounding = {true, 5};
  std::vector<float> residual(500);
  Bytes wire(encoded_bytes(500, code));
  encode_blocks(wire.data(), in.data(), residual.data(), 500, code, 2.0F, rounding, 7);
  EXPECT_EQ(encode_at(widest, in, code, nullptr, 2.0F, rounding, 7), wire);
  std::vector<float> out(500);
  decode_blocks(out.data(), wire.data(), 500, code, 0.5F);
  decode_add_blocks(out.data(), wire.data(), 500, code);
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(3 * in[i], out[i], 3 * scale_of(wire, i, code));
    ASSERT_NEAR(2 * in[i], out[i] / 1.5 + residual[i], 1e-6);
  }
  encode_blocks(nullptr, nullptr, nullptr, 0, code, 1.0F, rounding, 0);
  decode_blocks(nullptr, nullptr, 0, code, 1.0F);
  decode_add_blocks(nullptr, nullptr, 0, code);
}

}  // namespace
}  // namespace aiacc
