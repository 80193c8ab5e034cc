#include "csrc/kernels/gpu/block_coder.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/blocks.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"

namespace aiacc {
namespace {

using BlockCoderTest = GpuKernelsTest;

TEST_F(BlockCoderTest, QueuesAndReturns) {
  const BlockCoder coder(driver(), image());
  const std::vector<float> in = random_floats(5000, 1);
  for (const BlockFormat format : block_formats()) {
    const BlockCode code = {format, 128};
    const Rounding rounding = {true, 4};
    std::vector<float> expected_residual(in.size(), 0.5F);
    Bytes expected(encoded_bytes(in.size(), code));
    encode_blocks(
        expected.data(), in.data(), expected_residual.data(), in.size(), code, 2, rounding, 256);
    std::vector<float> expected_out(in.size());
    decode_blocks(expected_out.data(), expected.data(), in.size(), code, 0.25F);
    decode_add_blocks(expected_out.data(), expected.data(), in.size(), code);

    const int before = cuda_.synchronising_calls();
    const int launches = cuda_.launches();
    std::vector<float> residual(in.size(), 0.5F);
    std::vector<float> out(in.size());
    Bytes wire(expected.size());
    cuda_.hold();
    coder.encode(
        stream_, wire.data(), in.data(), residual.data(), in.size(), code, 2, rounding, 256);
    coder.decode(stream_, out.data(), wire.data(), in.size(), code, 0.25F);
    coder.decode_add(stream_, out.data(), wire.data(), in.size(), code);
    EXPECT_EQ(Bytes(expected.size()), wire);
    EXPECT_EQ(before, cuda_.synchronising_calls());
    cuda_.release();
    cuda_.drain();
    EXPECT_EQ(expected, wire);
    EXPECT_EQ(expected_residual, residual);
    EXPECT_EQ(expected_out, out);
    EXPECT_EQ(3, cuda_.launches() - launches);
  }
  EXPECT_EQ(0, cuda_.misuses());
}

TEST_F(BlockCoderTest, NothingLaunchesNothing) {
  const BlockCoder coder(driver(), image());
  coder.encode(stream_, nullptr, nullptr, nullptr, 0, {}, 1, {}, 0);
  coder.decode(stream_, nullptr, nullptr, 0, {}, 1);
  EXPECT_EQ(0, cuda_.launches());
}

TEST_F(BlockCoderTest, ABrokenDeviceFailsTheLaunch) {
  const BlockCoder coder(driver(), image());
  cuda_.break_with(700);
  float x = 0;
  Bytes wire(5);
  EXPECT_THROW(coder.decode(stream_, &x, wire.data(), 1, {}, 1), Error);
}

}  // namespace
}  // namespace aiacc
