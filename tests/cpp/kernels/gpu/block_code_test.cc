// The kernels of block codes: their bodies on the host, and launched on a GPU in software. What
// they have to give is in block_code_check.h.

#include "csrc/kernels/gpu/block_code.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/kernels/gpu/block_code_check.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"

namespace aiacc {
namespace {

using BlockCodeTest = GpuKernelsTest;

TEST_F(BlockCodeTest, WarpsOfAnyNumberAndOrderGiveTheBitsOfTheCpu) {
  BlockCodeTwin twin = {1, true};
  for (const BlockCodeCase& job :
       block_code_cases({1, 2, 31, 127, 129, 1023, 1024, 1025, 2048, 4999})) {
    ASSERT_EQ("", check_block_code(rig_, twin, job));
    twin = {1 + twin.warps % 4, !twin.backwards || twin.warps == 4};
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
