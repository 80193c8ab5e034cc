// The kernels of block codes: their bodies on the host, and launched on a GPU in software. What
// they have to give is in block_code_check.h.

#include "csrc/kernels/gpu/block_code.h"

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/gpu/code_pack.h"
#include "tests/cpp/kernels/gpu/block_code_check.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

using BlockCodeTest = GpuKernelsTest;

TEST_F(BlockCodeTest, WarpsOfAnyNumberAndOrderGiveTheBitsOfTheCpu) {
  std::uint32_t runs = 0;
  for (const BlockCodeCase& job :
       block_code_cases({1, 2, 31, 127, 129, 1023, 1024, 1025, 2048, 4999})) {
    const BlockCodeTwin twin = {job.code.format, 1 + runs % 4, runs / 4 % 2 == 0};
    ASSERT_EQ("", check_block_code(rig_, twin, job));
    ++runs;
  }
}

TEST_F(BlockCodeTest, OneLaunchForEachCall) {
  const BlockCoder coder(driver(), image());
  for (const BlockCodeCase& job : block_code_cases({1, 5000})) {
    ASSERT_EQ("", check_block_code(rig_, coder, job));
  }
  EXPECT_EQ(0, cuda_.misuses());
  float x[128] = {};
  Bytes wire(132);
  void* const w = wire.data();
  for (const BlockFormat format : block_formats()) {
    const BlockCode code = {format, 128};
    const auto& stream = rig_.stream();
    EXPECT_EQ(1, launches_of([&] { coder.encode(stream, w, x, x, 128, code, 1, {}, 0); }));
    EXPECT_EQ(1, launches_of([&] { coder.decode(stream, x, w, 128, code, 1); }));
    EXPECT_EQ(1, launches_of([&] { coder.decode_add(stream, x, w, 128, code); }));
  }
}

TEST_F(BlockCodeTest, TheFastWayIsForAlignedTensors) {
  const BlockCode code = {BlockFormat::kInt8, 128};
  Mirrored<float> aligned(rig_, std::vector<float>(5000));
  Mirrored<float> shifted(rig_, std::vector<float>(5000), 1);
  Mirrored<unsigned char> wire(rig_, Bytes(encoded_bytes(5000, code) + 4));
  const auto tiles_of = [&](void* to, void* from, void* residual) {
    return plan_encoding(to, from, residual, 5000, code, 1.0F, {}, 0).tiles;
  };
  EXPECT_EQ(4U, tiles_of(wire.device(), aligned.device(), nullptr));
  EXPECT_EQ(4U, tiles_of(wire.device() + 4, aligned.device(), aligned.device()));
  EXPECT_EQ(0U, tiles_of(wire.device(), shifted.device(), nullptr));
  EXPECT_EQ(0U, tiles_of(wire.device(), aligned.device(), shifted.device()));
  EXPECT_EQ(0U, tiles_of(wire.device() + 1, aligned.device(), nullptr));
  EXPECT_EQ(4U + 8U,
            work_items(plan_decoding(aligned.device(), wire.device(), 5000, code, 1, false)));
}

TEST(BlockCodePlan, RefusesFloatsBetweenFloats) {
  std::vector<float> memory(8);
  auto* odd = reinterpret_cast<unsigned char*>(memory.data()) + 2;
  expect_error(status_of([&] { plan_decoding(odd, memory.data(), 1, {}, 1.0F, false); }),
               Code::kInvalidArgument,
               {"expected a multiple of 4"});
  EXPECT_THROW(plan_encoding(memory.data(), odd, nullptr, 1, {}, 1, {}, 0), Error);
  EXPECT_THROW(plan_encoding(memory.data(), memory.data(), odd, 1, {}, 1, {}, 0), Error);
  const BlockCode wrong = {BlockFormat::kInt8, 100};
  EXPECT_THROW(plan_encoding(nullptr, nullptr, nullptr, 0, wrong, 1, {}, 0), Error);
}

template <class Format>
class CodePackTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kMask = Format::kPacked ? 0xf : 0xff;

  /// Numbers that an encoder meets: up to the largest one of the format and its last bits beyond.
  static std::vector<float> numbers() {
    std::vector<float> values = {0.0F, 0x1p-149F, 0x1p-126F, 0x1p-10F, 0x1.8p-10F};
    for (float value = Format::kLargest * (1 + 0x1p-22F); value > 0x1p-12F; value *= 0.97F) {
      values.push_back(value);
    }
    for (float half = 0.5F; half < Format::kLargest; half += 1) {
      values.insert(values.end(), {half, std::nextafter(half, 0.0F), std::nextafter(half, 1e9F)});
    }
    const std::size_t positive = values.size();
    for (std::size_t i = 0; i < positive; ++i) {
      values.push_back(-values[i]);
    }
    while (values.size() % 4 != 0) {
      values.push_back(1.0F);
    }
    return values;
  }
};
using Formats = testing::Types<Int8Code, Int4Code, Float8Code>;
TYPED_TEST_SUITE(CodePackTest, Formats);

TYPED_TEST(CodePackTest, NearestAndByChance) {
  const std::vector<float> values = this->numbers();
  // All that the upper bits may be, and lower ones that differ.
  for (std::uint32_t upper = 0; upper < 1 << 16; upper += 5) {
    const std::uint32_t draw[4] = {upper << 16, upper << 16 | 0xffff, ~(upper << 16), 0xfffff000};
    const std::size_t at = upper % (values.size() / 4) * 4;
    const float x[4] = {values[at], values[at + 1], values[at + 2], values[at + 3]};
    const std::uint32_t nearest = CodePack<TypeParam>::nearest(x);
    const std::uint32_t drawn = CodePack<TypeParam>::by_chance(x, draw);
    for (int e = 0; e < 4; ++e) {
      ASSERT_EQ(TypeParam::nearest(x[e]) & this->kMask, nearest >> (8 * e) & this->kMask) << x[e];
      ASSERT_EQ(TypeParam::by_chance(x[e], draw[e]) & this->kMask, drawn >> (8 * e) & this->kMask)
          << x[e] << " " << draw[e];
    }
  }
}

TYPED_TEST(CodePackTest, Values) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const std::uint32_t codes = code | (code ^ 0x5a) << 8 | (255 - code) << 16 | code << 24;
    float value[4];
    CodePack<TypeParam>::values(codes, value);
    for (int e = 0; e < 4; ++e) {
      const auto byte = static_cast<std::uint8_t>(codes >> (8 * e));
      ASSERT_EQ(raw_bits(TypeParam::value(TypeParam::extend(byte))), raw_bits(value[e])) << code;
    }
  }
}

/// What a GPU does in one instruction and the host in some: a product that is cut off.
TEST(CodePackFloat8, CutsOffBelowWhatIsDrawn) {
  for (std::uint32_t bits = 0; bits < raw_bits(450.0F); bits += 997) {
    std::fesetround(FE_TOWARDZERO);
    const volatile float factor = 0x1p-120F;
    const volatile float product = raw_float(bits) * factor;
    std::fesetround(FE_TONEAREST);
    const bool subnormal = static_cast<std::int32_t>(bits) < Float8Code::kLeastNormal;
    const auto fixed = static_cast<std::uint32_t>(raw_float(subnormal ? bits : 0) * 0x1p29F);
    ASSERT_EQ(subnormal ? fixed : bits - Float8Code::kRebias, raw_bits(product)) << bits;
  }
}

}  // namespace
}  // namespace aiacc
