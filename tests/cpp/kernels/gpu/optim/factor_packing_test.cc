// The kernels that pack factors: their bodies on the host, and launched on a GPU in software. What
// they have to give is in factor_check.h.

#include "csrc/kernels/gpu/optim/factor_packing.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/kernels/gpu/optim/factor_check.h"

namespace aiacc {
namespace {

template <class T>
class FactorPackingTest : public GpuKernelsTest {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(FactorPackingTest, Types);

TYPED_TEST(FactorPackingTest, BlocksOfAnyNumberAndOrderReadAndWriteNothingElse) {
  for (const FactorJob& job : kFactorJobs) {
    for (const std::uint32_t blocks : {1U, 5U, 100000U}) {
      for (const bool backwards : {false, true}) {
        const FactorTwin twin = {blocks, backwards};
        EXPECT_EQ("", check_factors<TypeParam>(this->rig_, twin, factor_shapes(), job)) << blocks;
      }
    }
  }
}

TYPED_TEST(FactorPackingTest, ALaunchForUpTo73Stacks) {
  DeviceFactors device(this->driver(), this->image());
  int launches = 0;
  const auto queued = [&](FactorWork work, DataType dtype, const std::vector<FactorStack>& stacks) {
    launches = this->launches_of([&] { device.run(this->rig_.stream(), work, dtype, stacks); });
  };
  for (const FactorJob& job : kFactorJobs) {
    for (const std::size_t number : {1, 73, 74, 146}) {
      const FactorShapes shapes(number, {66, 1});
      EXPECT_EQ("", check_factors<TypeParam>(this->rig_, queued, shapes, job));
      EXPECT_EQ(number <= 73 ? 1 : 2, launches);
    }
  }
}

TEST(FactorPlan, RefusesWhatItCannot) {
  std::vector<double> memory(8);
  const auto refused = [&](const FactorStack& stack, DataType dtype = DataType::kFloat64) {
    FactorBatch batch;
    try {
      plan_factors(dtype, &stack, 1, batch);
    } catch (const Error& error) {
      EXPECT_EQ(Code::kInvalidArgument, error.code());
      return std::string(error.what());
    }
    return std::string();
  };
  double* even = memory.data();
  float* odd = reinterpret_cast<float*>(even) + 1;
  EXPECT_NE(std::string::npos, refused({odd, even, 2, 1, 2, 0}).find("a multiple of 8"));
  EXPECT_NE(std::string::npos, refused({even, odd, 2, 1, 2, 0}).find("a multiple of 8"));
  EXPECT_EQ("", refused({odd, odd, 2, 1, 2, 0}, DataType::kFloat32));
  EXPECT_EQ("", refused({even, even, 64, 1ULL << 31, 64, 4096}));
  EXPECT_NE(std::string::npos, refused({even, even, 64, (1ULL << 31) + 1, 64, 4096}).find("2^31"));
  EXPECT_EQ("", refused({even, even, 65535ULL * 64, 1, 1ULL << 22, 0}));
  EXPECT_NE(std::string::npos, refused({even, even, 1ULL << 22, 1, 1ULL << 22, 0}).find("2^31"));
  EXPECT_NE(std::string::npos, refused({even, even, ~0ULL, ~0ULL, 1, 1}).find("2^31"));
  EXPECT_THROW(choose_factor_kernel(FactorWork::kPack, DataType::kFloat16), Error);
}

}  // namespace
}  // namespace aiacc
