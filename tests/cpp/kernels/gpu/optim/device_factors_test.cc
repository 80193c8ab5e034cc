#include "csrc/kernels/gpu/optim/device_factors.h"

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/kernels/gpu/optim/factors.h"

namespace aiacc {
namespace {

using DeviceFactorsTest = GpuKernelsTest;

TEST_F(DeviceFactorsTest, QueuesALaunchForUpTo73Stacks) {
  DeviceFactors device(driver(), image());
  const int before = cuda_.synchronising_calls();
  for (const std::size_t number : {1, 73, 74, 146}) {
    Factors<double> factors(std::vector<Factors<double>::Shape>(number, {66, 1}));
    factors.each(
        [](double& upper, double&, double&, std::size_t place) { upper = value_of(place); });
    const auto untouched = factors.packed();
    const int launches = cuda_.launches();
    cuda_.hold();
    device.run(stream_, FactorWork::kPack, DataType::kFloat64, factors.stacks());
    EXPECT_EQ(untouched, factors.packed());
    cuda_.release();
    device.run(stream_, FactorWork::kUnpack, DataType::kFloat64, factors.stacks());
    cuda_.drain();
    EXPECT_EQ(number <= 73 ? 2 : 4, cuda_.launches() - launches);
    factors.each([](double& upper, double& lower, double& packed, std::size_t place) {
      ASSERT_EQ(value_of(place), packed);
      ASSERT_EQ(packed, upper);
      ASSERT_EQ(packed, lower);
    });
  }
  EXPECT_EQ(before, cuda_.synchronising_calls());
  EXPECT_EQ(0, cuda_.misuses());
}

TEST_F(DeviceFactorsTest, NothingLaunchesNothing) {
  DeviceFactors device(driver(), image());
  device.run(stream_, FactorWork::kPack, DataType::kFloat32, {});
  device.run(stream_, FactorWork::kAverage, DataType::kFloat32, {{nullptr, nullptr, 0, 1, 0, 0}});
  EXPECT_EQ(0, cuda_.launches());
}

TEST_F(DeviceFactorsTest, ABrokenDeviceFailsTheCall) {
  DeviceFactors device(driver(), image());
  Factors<float> factors({{4, 1}});
  cuda_.break_with(700);
  EXPECT_THROW(device.run(stream_, FactorWork::kPack, DataType::kFloat32, factors.stacks()), Error);
}

TEST(DeviceFactors, ABuildWithoutKernelsSaysSo) {
  FakeCuda cuda;
  EXPECT_THROW(DeviceFactors(cuda.driver(), DeviceImage{}), Error);
}

}  // namespace
}  // namespace aiacc
