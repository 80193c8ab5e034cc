#include "csrc/kernels/gpu/pair_adder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/kernels/gpu/selection_check.h"

namespace aiacc {
namespace {

using PairAdderTest = GpuKernelsTest;

TEST_F(PairAdderTest, AddsWhatTheHostAdds) {
  const PairAdder adder(driver(), image());
  for (const std::size_t pairs : {1, 3000}) {  // more than threads run
    EXPECT_EQ("", check_sum_of_pairs(rig_, adder, 10'000, pairs));
  }
}

TEST_F(PairAdderTest, AnIndexBeyondTheElementsIsSeen) {
  const PairAdder adder(driver(), image());
  const float values[] = {1, 2, 3};
  std::vector<std::uint32_t> wire = {0, 0, 0, 0, 0xffffffff, 7};
  std::memcpy(wire.data(), values, sizeof values);
  std::vector<float> out(9, 1.0F);
  EXPECT_EQ(1, launches_of([&] { adder.add(rig_.stream(), out.data(), wire.data(), 3, 8); }));
  EXPECT_EQ(1, std::count_if(out.begin(), out.end(), [](float x) { return std::isnan(x); }));
  EXPECT_EQ(2.0F, out[0]);
  EXPECT_EQ(4.0F, out[7]);
  EXPECT_EQ(1.0F, out[8]) << "beyond the elements";
}

}  // namespace
}  // namespace aiacc
