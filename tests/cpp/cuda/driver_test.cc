#include "csrc/cuda/driver.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/cuda/visible_devices.h"
#include "tests/cpp/cuda/driver_symbols.h"
#include "tests/cpp/support/fakes/fake_cuda.h"

// AIACC_FAKE_CUDA, from CMake: path of the library made of fake_driver.cc.

namespace aiacc {
namespace {

template <class... Arguments>
CudaResult call(CudaResult (*function)(Arguments...)) {
  return function(Arguments{}...);
}

TEST(CudaDriverTest, EveryMemberIsItsFunction) {
  const CudaDriver driver = load_cuda_driver(AIACC_FAKE_CUDA);
  int line = 0;
#define AIACC_CALL(member, function, symbol) EXPECT_EQ(line++, call(driver.member)) << symbol;
  AIACC_CUDA_SYMBOLS(AIACC_CALL)
  EXPECT_EQ(sizeof(CudaDriver) / sizeof(driver.init), static_cast<std::size_t>(line));
}

std::string reason(const std::string& library) {
  try {
    load_cuda_driver(library);
  } catch (const Error& error) {
    EXPECT_EQ(Code::kEngine, error.code());
    return error.what();
  }
  return "";
}

TEST(CudaDriverTest, NoDriver) {
  const std::string text = reason("/nowhere/libcuda.so.1");
  EXPECT_NE(std::string::npos, text.find("/nowhere/libcuda.so.1")) << text;
  EXPECT_NE(std::string::npos, text.find("need the NVIDIA driver")) << text;
}

TEST(CudaDriverTest, AnotherLibrary) {
  EXPECT_NE(std::string::npos, reason("libm.so.6").find("has no symbol \"cuInit\""));
}

TEST(CudaDriverTest, SaysWhichCallHasFailed) {
  const FakeCuda cuda;
  EXPECT_NO_THROW(check_cuda(cuda.driver(), kCudaSuccess, "event_query"));
  try {
    check_cuda(cuda.driver(), kCudaNotReady, "event_query");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ("[cuda] event_query failed: CUDA_ERROR_FAKE (a fake's error)", error.what());
  }
}

TEST(VisibleDevices, TheirAddressesInTheOrderOfTheirNumbers) {
  const FakeCuda cuda(3);
  EXPECT_EQ((std::vector<std::string>{"0000:1a:00.0", "0000:1b:00.0", "0000:1c:00.0"}),
            visible_devices(cuda.driver()));
}

}  // namespace
}  // namespace aiacc
