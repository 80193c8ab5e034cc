// The body of the CUDA kernels, run on the host, against the CPU's kernels: bit by bit.

#include "csrc/kernels/gpu/block_code.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/vector/level.h"
#include "tests/cpp/kernels/blocks.h"
#include "tests/cpp/kernels/elements.h"

namespace aiacc {
namespace {

/// Floats with room before and after, at any multiple of 4 from an aligned address.
class Floats {
 public:
  Floats(const std::vector<float>& values, std::size_t offset)
      : memory_(values.size() + offset + 8, 0x1.5ap3F),
        begin_((16 - address() % 16) % 16 / sizeof(float) + offset),
        count_(values.size()) {
    std::copy(values.begin(), values.end(), memory_.begin() + static_cast<std::ptrdiff_t>(begin_));
  }
  float* data() { return memory_.data() + begin_; }
  std::vector<float> values() const {
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return {begin, begin + static_cast<std::ptrdiff_t>(count_)};
  }
  bool intact() const {
    std::size_t others = 0;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool inside = i >= begin_ && i < begin_ + count_;
      others += !inside && memory_[i] == 0x1.5ap3F ? 1 : 0;
    }
    return others == memory_.size() - count_;
  }

 private:
  std::size_t address() const { return reinterpret_cast<std::uintptr_t>(memory_.data()); }

  std::vector<float> memory_;
  std::size_t begin_;
  std::size_t count_;
};

bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) {
      return false;
    }
  }
  return a.size() == b.size();
}

class BlockCodeTest : public testing::TestWithParam<BlockFormat> {
 protected:
  static const BlockCodeKernels& kernels() {
    return block_code_kernels()[static_cast<std::size_t>(GetParam())];
  }

  /// Encodes on both sides, with feedback and without, and decodes on both.
  static void check_both(const std::vector<float>& in,
                         const BlockCode& code,
                         std::size_t offset,
                         std::size_t wire_offset,
                         const Rounding& rounding,
                         std::uint32_t warps,
                         std::uint64_t first_index = 5120) {
    const std::vector<float> before = random_floats(in.size(), 8);
    for (const bool keeps : {false, true}) {
      std::vector<float> expected_residual = before;
      const Bytes expected = encode_at(kBaselineLevel,
                                       in,
                                       code,
                                       keeps ? &expected_residual : nullptr,
                                       0.7F,
                                       rounding,
                                       first_index);
      Floats from(in, offset);
      Floats residual(before, offset);
      Bytes wire(expected.size() + wire_offset + 1, 0x5a);
      kernels().encode(plan_encoding(wire.data() + wire_offset,
                                     from.data(),
                                     keeps ? residual.data() : nullptr,
                                     in.size(),
                                     code,
                                     0.7F,
                                     rounding,
                                     first_index),
                       warps,
                       warps % 2 == 0);
      ASSERT_EQ(0, std::memcmp(expected.data(), wire.data() + wire_offset, expected.size()));
      ASSERT_EQ(0x5a, wire.back());
      ASSERT_TRUE(same_floats(keeps ? expected_residual : before, residual.values()));
      ASSERT_TRUE(residual.intact());
      check_decoders(wire, wire_offset, in.size(), code, offset, warps);
    }
  }

  static void check_decoders(const Bytes& wire,
                             std::size_t wire_offset,
                             std::size_t count,
                             const BlockCode& code,
                             std::size_t offset,
                             std::uint32_t warps) {
    const std::vector<float> before = random_floats(count, 9);
    for (const bool adds : {false, true}) {
      std::vector<float> expected = before;
      if (adds) {
        kBaselineLevel.decode_add_blocks(expected.data(), wire.data() + wire_offset, count, code);
      } else {
        kBaselineLevel.decode_blocks(
            expected.data(), wire.data() + wire_offset, count, code, 1.0F / 3);
      }
      Floats out(before, offset);
      kernels().decode(
          plan_decoding(out.data(), wire.data() + wire_offset, count, code, 1.0F / 3, adds),
          warps,
          warps % 2 == 0);
      ASSERT_TRUE(same_floats(expected, out.values()));
      ASSERT_TRUE(out.intact());
    }
  }
};

TEST_P(BlockCodeTest, GivesTheBitsOfTheCpu) {
  for (const std::uint32_t block : {128, 256, 512, 1024}) {
    const BlockCode code = {GetParam(), block};
    for (const std::size_t count : {1, 2, 31, 127, 129, 1023, 1024, 1025, 2048, 4999}) {
      for (const bool stochastic : {false, true}) {
        SCOPED_TRACE("blocks of " + std::to_string(block) + ", " + std::to_string(count));
        check_both(random_floats(count, block), code, 0, 0, {stochastic, 11}, 3);
        check_both(any_elements<float>(count, block), code, 0, 4, {stochastic, 12}, 2);
      }
    }
  }
}

TEST_P(BlockCodeTest, AtAnyMultipleOfFour) {
  const BlockCode code = {GetParam(), 256};
  for (const std::size_t offset : {0, 1, 2, 3}) {
    for (const std::size_t wire_offset : {0, 1, 2, 3}) {
      check_both(random_floats(2300, 3), code, offset, wire_offset, {true, 13}, 4);
    }
  }
}

TEST_P(BlockCodeTest, DrawsPastTheFirst32BitsOfAnIndex) {
  for (const std::uint32_t block : {128, 512, 1024}) {
    const BlockCode code = {GetParam(), block};
    for (const std::uint64_t before : {1024U, 1536U, 2100U}) {
      const std::uint64_t first_index = (std::uint64_t{3} << 32) - before;
      check_both(random_floats(5000, 4), code, 0, 0, {true, 14}, 2, first_index);
    }
  }
}

TEST_P(BlockCodeTest, TheFastWayIsForAlignedTensors) {
  const BlockCode code = {GetParam(), 128};
  std::vector<float> in(5000);
  Floats aligned(in, 0);
  Floats shifted(in, 1);
  Bytes wire(encoded_bytes(5000, code) + 4);
  const auto tiles_of = [&](void* to, void* from, void* residual) {
    return plan_encoding(to, from, residual, 5000, code, 1.0F, {}, 0).tiles;
  };
  EXPECT_EQ(4U, tiles_of(wire.data(), aligned.data(), nullptr));
  EXPECT_EQ(4U, tiles_of(wire.data() + 4, aligned.data(), aligned.data()));
  EXPECT_EQ(0U, tiles_of(wire.data(), shifted.data(), nullptr));
  EXPECT_EQ(0U, tiles_of(wire.data(), aligned.data(), shifted.data()));
  EXPECT_EQ(0U, tiles_of(wire.data() + 1, aligned.data(), nullptr));
  EXPECT_EQ(4U + 8U, work_items(plan_decoding(aligned.data(), wire.data(), 5000, code, 1, false)));
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         BlockCodeTest,
                         testing::ValuesIn(block_formats()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(BlockCodePlan, RefusesFloatsBetweenFloats) {
  std::vector<float> memory(8);
  auto* odd = reinterpret_cast<unsigned char*>(memory.data()) + 2;
  try {
    plan_decoding(odd, memory.data(), 1, {}, 1.0F, false);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kInvalidArgument, error.code());
    EXPECT_NE(std::string::npos, std::string(error.what()).find("expected a multiple of 4"));
  }
  EXPECT_THROW(plan_encoding(memory.data(), odd, nullptr, 1, {}, 1, {}, 0), Error);
  EXPECT_THROW(plan_encoding(memory.data(), memory.data(), odd, 1, {}, 1, {}, 0), Error);
  const BlockCode wrong = {BlockFormat::kInt8, 100};
  EXPECT_THROW(plan_encoding(nullptr, nullptr, nullptr, 0, wrong, 1, {}, 0), Error);
}

}  // namespace
}  // namespace aiacc
