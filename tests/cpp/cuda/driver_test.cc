#include "csrc/cuda/driver.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/cuda/visible_devices.h"
#include "tests/cpp/cuda/driver_symbols.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/fakes/fake_cuda.h"
#include "tests/cpp/support/foreign_functions.h"

// AIACC_FAKE_CUDA, from CMake: path of the library made of fake_driver.cc.

namespace aiacc {
namespace {

TEST(CudaDriverTest, EveryMemberIsItsFunction) {
  const CudaDriver driver = load_cuda_driver(AIACC_FAKE_CUDA);
  int line = 0;
#define AIACC_CALL(member, function, symbol) EXPECT_EQ(line++, call(driver.member)) << symbol;
  AIACC_CUDA_SYMBOLS(AIACC_CALL)
  EXPECT_EQ(sizeof(CudaDriver) / sizeof(driver.init), static_cast<std::size_t>(line));
}

TEST(CudaDriverTest, NoDriverAndAnotherLibrary) {
  expect_error(status_of([] { load_cuda_driver("/nowhere/libcuda.so.1"); }),
               Code::kEngine,
               {"/nowhere/libcuda.so.1", "need the NVIDIA driver"});
  expect_error(status_of([] { load_cuda_driver("libm.so.6"); }),
               Code::kEngine,
               {"has no symbol \"cuInit\""});
}

TEST(CudaDriverTest, SaysWhichCallHasFailed) {
  const FakeCuda cuda;
  EXPECT_NO_THROW(check_cuda(cuda.driver(), kCudaSuccess, "event_query"));
  expect_error(status_of([&] { check_cuda(cuda.driver(), kCudaNotReady, "event_query"); }),
               Code::kEngine,
               {"[cuda] event_query failed: CUDA_ERROR_FAKE (a fake's error)"});
}

TEST(VisibleDevices, TheirAddressesInTheOrderOfTheirNumbers) {
  const FakeCuda cuda(3);
  EXPECT_EQ((std::vector<std::string>{"0000:1a:00.0", "0000:1b:00.0", "0000:1c:00.0"}),
            visible_devices(cuda.driver()));
}

}  // namespace
}  // namespace aiacc
