#include "csrc/cuda/device_pool.h"

#include <cstddef>
#include <map>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/fakes/fake_cuda.h"

namespace aiacc {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// What is left of a GPU, and how its driver gives memory out and takes it back.
std::size_t left = 0;
std::map<CudaAddress, std::size_t> given;
CudaResult (*really_allocate)(CudaAddress*, std::size_t) = nullptr;
CudaResult (*really_release)(CudaAddress) = nullptr;

TEST(DevicePool, GivesBackWhatIsIdleBeforeItRefuses) {
  FakeCuda cuda(1);
  CudaDriver driver = cuda.driver();
  left = 10 * kMiB;
  given.clear();
  really_allocate = driver.allocate;
  really_release = driver.release;
  driver.allocate = [](CudaAddress* address, std::size_t bytes) {
    if (bytes > left) {
      return kCudaOutOfMemory;
    }
    const CudaResult result = really_allocate(address, bytes);
    left -= bytes;
    given[*address] = bytes;
    return result;
  };
  driver.release = [](CudaAddress address) {
    left += given[address];
    return really_release(address);
  };
  {
    const auto device = Device::open(driver, 0);
    const auto pool = DevicePool::make(device);
    const Device::Scope scope(*device);
    pool->take(6 * kMiB, nullptr);
    EXPECT_EQ(left, 4 * kMiB) << "it keeps what it may use again";
    const auto taken = pool->take(7 * kMiB, nullptr);
    EXPECT_EQ(left, 3 * kMiB);
    expect_error(status_of([&] { pool->take(4 * kMiB, nullptr); }), Code::kEngine, {"allocate"});
    EXPECT_EQ(left, 3 * kMiB) << "what is in use stays";
  }
  EXPECT_EQ(left, 10 * kMiB);
}

}  // namespace
}  // namespace aiacc
