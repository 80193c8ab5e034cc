#include "csrc/kernels/gpu/pair_adder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/select.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"

namespace aiacc {
namespace {

using PairAdderTest = GpuKernelsTest;

/// Values, then their indices.
std::vector<std::uint32_t> wire_of(const std::vector<float>& values,
                                   const std::vector<std::uint32_t>& indices) {
  std::vector<std::uint32_t> wire(values.size());
  std::memcpy(wire.data(), values.data(), values.size() * sizeof(float));
  wire.insert(wire.end(), indices.begin(), indices.end());
  return wire;
}

TEST_F(PairAdderTest, QueuesAndReturnsWhatTheHostAdds) {
  const PairAdder adder(driver(), image());
  constexpr std::size_t kCount = 10'000;
  for (const std::size_t pairs : {std::size_t{1}, std::size_t{3000}}) {  // more than threads run
    std::vector<float> values(pairs);
    std::vector<std::uint32_t> indices(pairs);
    for (std::size_t i = 0; i < pairs; ++i) {
      values[i] = 0.1F * static_cast<float>(i) - 3;
      indices[i] = static_cast<std::uint32_t>(3 * i + 1);
    }
    const std::vector<std::uint32_t> wire = wire_of(values, indices);
    std::vector<float> out(kCount, 0.7F);
    std::vector<float> expected = out;
    scatter_add(expected.data(), wire.data(), pairs, kCount, 1.0F);
    const int launches = cuda_.launches();
    cuda_.hold();
    adder.add(stream_, out.data(), wire.data(), pairs, kCount);
    EXPECT_EQ(std::vector<float>(kCount, 0.7F), out);
    cuda_.release();
    cuda_.drain();
    EXPECT_EQ(expected, out);
    EXPECT_EQ(1, cuda_.launches() - launches);
  }
  adder.add(stream_, nullptr, nullptr, 0, 1);
  EXPECT_EQ(0, cuda_.misuses());
}

TEST_F(PairAdderTest, AnIndexBeyondTheElementsIsSeen) {
  const PairAdder adder(driver(), image());
  const auto wire = wire_of({1, 2, 3}, {0, 0xffffffff, 7});
  std::vector<float> out(9, 1.0F);
  adder.add(stream_, out.data(), wire.data(), 3, 8);
  cuda_.drain();
  EXPECT_EQ(1, std::count_if(out.begin(), out.end(), [](float x) { return std::isnan(x); }));
  EXPECT_EQ(2.0F, out[0]);
  EXPECT_EQ(4.0F, out[7]);
  EXPECT_EQ(1.0F, out[8]) << "beyond the elements";
}

}  // namespace
}  // namespace aiacc
