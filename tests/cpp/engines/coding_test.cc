#include "csrc/engines/coding.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

constexpr WireFormat kInBlocks[] = {
    WireFormat::kInt8Blocks, WireFormat::kInt4Blocks, WireFormat::kFloat8Blocks};

TEST(Coding, NumbersThatAreFine) {
  for (const WireFormat format : kInBlocks) {
    for (const std::uint32_t block : {128, 256, 512, 1024}) {
      EXPECT_EQ("", coding_problem(format, block));
      EXPECT_EQ("", coding_problem(format, block + Coding::kStochastic));
    }
  }
  for (const std::uint32_t millionths : {1U, 10'000U, Coding::kMostMillionths}) {
    for (const std::uint32_t mode : {0U, Coding::kExact, Coding::kReference}) {
      EXPECT_EQ("", coding_problem(WireFormat::kLargest, millionths + mode));
    }
  }
  for (const WireFormat format : {WireFormat::kTensor, WireFormat::kFloat16}) {
    EXPECT_EQ("", coding_problem(format, 0));
  }
}

void expect_problem(WireFormat format, std::uint32_t detail, const std::string& part) {
  const std::string problem = coding_problem(format, detail);
  EXPECT_NE(std::string::npos, problem.find(part)) << "'" << part << "' is not in: " << problem;
}

TEST(Coding, NumbersThatAreNot) {
  for (const WireFormat format : kInBlocks) {
    for (const std::uint32_t block : {0, 1, 64, 127, 129, 384, 2048, 65535}) {
      expect_problem(format, block, std::to_string(block));
      expect_problem(format, block, "128");
      expect_problem(format, block + Coding::kStochastic, std::to_string(block));
    }
    EXPECT_NE("", coding_problem(format, 256 + 2 * Coding::kStochastic)) << "an unknown flag";
  }
  const std::pair<WireFormat, std::uint32_t> densities[] = {
      {WireFormat::kLargest, 0U},
      {WireFormat::kLargest, Coding::kExact},
      {WireFormat::kLargest, Coding::kReference},
      {WireFormat::kRandom, 0U},
      {WireFormat::kRandom, Coding::kUnbiased}};
  for (const auto& [format, mode] : densities) {
    EXPECT_EQ("", coding_problem(format, 1000 + mode));
    for (const std::uint32_t millionths : {0U, Coding::kMostMillionths + 1, 1'000'000U}) {
      expect_problem(
          format,
          millionths + mode,
          "density of " + std::to_string(millionths) + " millionths (expected 1 to 100000)");
    }
  }
  EXPECT_NE("", coding_problem(WireFormat::kLargest, 1000 + Coding::kUnbiased)) << "of others";
  EXPECT_NE("", coding_problem(WireFormat::kLargest, 1 << 23)) << "an unknown flag";
  for (const std::uint32_t other : {Coding::kExact, Coding::kReference}) {
    EXPECT_NE("", coding_problem(WireFormat::kRandom, 1000 + other)) << "a flag of others";
  }
  expect_problem(
      WireFormat::kLargest, 1000 + Coding::kExact + Coding::kReference, "both exact and reference");
  expect_problem(WireFormat::kFloat16, 7, "number 7 (expected none)");
}

TEST(Coding, IsReadFromItsNumbers) {
  const Coding int8{WireFormat::kInt8Blocks, 512 + Coding::kStochastic};
  EXPECT_TRUE(int8.in_blocks());
  EXPECT_TRUE(int8.stochastic());
  EXPECT_EQ(BlockFormat::kInt8, int8.block_code().format);
  EXPECT_EQ(512U, int8.block_code().block);
  EXPECT_EQ(BlockFormat::kInt4, (Coding{WireFormat::kInt4Blocks, 128}.block_code().format));
  EXPECT_EQ(BlockFormat::kFloat8E4M3, (Coding{WireFormat::kFloat8Blocks, 128}.block_code().format));
  EXPECT_FALSE((Coding{WireFormat::kInt4Blocks, 128}.stochastic()));
  const Coding largest{WireFormat::kLargest, 10'000};
  EXPECT_FALSE(largest.in_blocks());
  EXPECT_EQ(SelectMode::kTracked, largest.mode());
  EXPECT_EQ(SelectMode::kExact, (Coding{WireFormat::kLargest, 1 + Coding::kExact}.mode()));
  EXPECT_EQ(SelectMode::kReference, (Coding{WireFormat::kLargest, 1 + Coding::kReference}.mode()));
  const Coding random{WireFormat::kRandom, 20'000 + Coding::kUnbiased};
  EXPECT_FALSE(random.in_blocks());
  EXPECT_TRUE(random.unbiased());
  EXPECT_FALSE((Coding{WireFormat::kRandom, 20'000}.unbiased()));
  EXPECT_EQ(3U, random.selected(101));
  // Rounded up, whatever the mode.
  for (const std::uint32_t mode : {0U, Coding::kExact, Coding::kReference}) {
    const Coding one{WireFormat::kLargest, 10'000 + mode};
    EXPECT_EQ(1U, one.selected(1));
    EXPECT_EQ(1U, one.selected(100));
    EXPECT_EQ(2U, one.selected(101));
    EXPECT_EQ(10'000U, one.selected(1'000'000));
  }
}

/// Pairs of 8 bytes, so 1/8 of the elements, or more, are no less than 8 bits of each.
TEST(Coding, ThinningIsBytesOfEightBitsPerByteThatTravels) {
  const auto thinning = [](WireFormat format, std::uint32_t detail) {
    return Coding{format, detail}.thinning();
  };
  EXPECT_EQ(1U, thinning(WireFormat::kInt8Blocks, 256 + Coding::kStochastic));
  EXPECT_EQ(1U, thinning(WireFormat::kFloat8Blocks, 256));
  EXPECT_EQ(2U, thinning(WireFormat::kInt4Blocks, 256));
  for (const std::uint32_t mode : {0U, Coding::kExact, Coding::kReference}) {
    EXPECT_EQ(1U, thinning(WireFormat::kLargest, 100'000 + mode));
    EXPECT_EQ(12U, thinning(WireFormat::kLargest, 10'000 + mode));
    EXPECT_EQ(125U, thinning(WireFormat::kLargest, 1000 + mode));
    EXPECT_EQ(125'000U, thinning(WireFormat::kLargest, 1 + mode));
  }
  EXPECT_EQ(25U, thinning(WireFormat::kRandom, 10'000 + Coding::kUnbiased));
  EXPECT_EQ(2U, thinning(WireFormat::kRandom, 100'000));
}

}  // namespace
}  // namespace aiacc
