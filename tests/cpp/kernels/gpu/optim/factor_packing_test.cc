// The kernels that pack factors: their bodies on the host, and launched on a GPU in software. What
// they have to give is in factor_check.h.

#include "csrc/kernels/gpu/optim/factor_packing.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/kernels/gpu/optim/factor_check.h"
#include "tests/cpp/support/errors.h"

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
  const auto expect_refusal = [](const FactorStack& stack, const std::string& part) {
    FactorBatch batch;
    expect_error(status_of([&] { plan_factors(DataType::kFloat64, &stack, 1, batch); }),
                 part.empty() ? Code::kOk : Code::kInvalidArgument,
                 {part});
  };
  double* even = memory.data();
  float* odd = reinterpret_cast<float*>(even) + 1;
  expect_refusal({odd, even, 2, 1, 2, 0}, "a multiple of 8");
  expect_refusal({even, odd, 2, 1, 2, 0}, "a multiple of 8");
  expect_refusal({even, even, 64, 1ULL << 31, 64, 4096}, "");
  expect_refusal({even, even, 64, (1ULL << 31) + 1, 64, 4096}, "2^31");
  expect_refusal({even, even, 65535ULL * 64, 1, 1ULL << 22, 0}, "");
  expect_refusal({even, even, 1ULL << 22, 1, 1ULL << 22, 0}, "2^31");
  expect_refusal({even, even, ~0ULL, ~0ULL, 1, 1}, "2^31");
  FactorBatch batch;
  const FactorStack single = {odd, odd, 2, 1, 2, 0};
  EXPECT_NO_THROW(plan_factors(DataType::kFloat32, &single, 1, batch));
  EXPECT_THROW(choose_factor_kernel(FactorWork::kPack, DataType::kFloat16), Error);
}

}  // namespace
}  // namespace aiacc
