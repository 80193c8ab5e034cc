#include "csrc/kernels/batch_copier.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/gpu/gpu_kernels.h"

namespace aiacc {
namespace {

using BatchCopierTest = GpuKernelsTest;

TEST_F(BatchCopierTest, QueuesAndReturns) {
  BatchCopier copier(driver(), image());
  const int before = cuda_.synchronising_calls();
  std::vector<float> in(5000, 3.0f);
  std::vector<float> out(5000);
  cuda_.hold();
  CopyJob job;
  job.factor = 2.0;
  copier.enqueue(stream_, job, {{in.data(), out.data(), in.size()}});
  EXPECT_EQ(0.0f, out[0]);
  EXPECT_EQ(before, cuda_.synchronising_calls());
  cuda_.release();
  cuda_.drain();
  EXPECT_EQ(std::vector<float>(5000, 6.0f), out);
  EXPECT_EQ(0, cuda_.misuses());
}

TEST_F(BatchCopierTest, OneLaunchForAThousandTensors) {
  BatchCopier copier(driver(), image());
  for (const std::size_t count : {0, 1, 126, 127, 1022, 1023, 2500}) {
    const int before = cuda_.launches();
    std::vector<std::uint16_t> out(count);
    std::vector<float> in(count, 1.0f);
    std::vector<CopySegment> segments;
    for (std::size_t i = 0; i < count; ++i) {
      segments.push_back({&in[i], &out[i], 1});
    }
    CopyJob job;
    job.wire = WireFormat::kBFloat16;
    copier.enqueue(stream_, job, segments);
    cuda_.drain();
    EXPECT_EQ(static_cast<int>((count + 1021) / 1022), cuda_.launches() - before) << count;
    EXPECT_EQ(std::vector<std::uint16_t>(count, 0x3f80), out);
  }
}

TEST_F(BatchCopierTest, ReportsGoToTheirSegments) {
  BatchCopier copier(driver(), image());
  std::vector<float> in(1500, 1.0f);
  in[3] = 1e6f;
  in[1400] = -1e6f;
  std::vector<std::uint16_t> out(in.size());
  std::vector<CopySegment> segments;
  for (std::size_t i = 0; i < in.size(); ++i) {
    segments.push_back({&in[i], &out[i], 1});
  }
  CopyJob job;
  job.wire = WireFormat::kFloat16;
  job.check = true;
  std::vector<CopyReport> reports(in.size());
  copier.enqueue(stream_, job, segments, reports.data());
  cuda_.drain();
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(i == 3 || i == 1400, reports[i].overflow != 0) << i;
  }
}

TEST_F(BatchCopierTest, EmptyTensorsLaunchNothing) {
  BatchCopier copier(driver(), image());
  copier.enqueue(stream_, CopyJob{}, {{nullptr, nullptr, 0}, {nullptr, nullptr, 0}});
  EXPECT_EQ(0, cuda_.launches());
}

TEST_F(BatchCopierTest, ABrokenDeviceFailsTheLaunch) {
  BatchCopier copier(driver(), image());
  cuda_.break_with(700);
  float x = 0;
  try {
    copier.enqueue(stream_, CopyJob{}, {{&x, &x, 1}});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kEngine, error.code());
    EXPECT_STREQ("[cuda] launch failed: CUDA_ERROR_FAKE (a fake's error)", error.what());
  }
}

TEST_F(BatchCopierTest, ABuildWithoutKernelsSaysSo) {
  try {
    const BatchCopier copier(driver(), DeviceImage{});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kUnsupported, error.code());
    EXPECT_NE(std::string::npos, std::string(error.what()).find("no CUDA kernels"));
  }
}

TEST_F(BatchCopierTest, AnImageThatDoesNotLoadNamesDeviceAndDriver) {
  CudaDriver driver = this->driver();
  driver.module_load = [](CudaModule*, const void*) { return 209; };
  try {
    const BatchCopier copier(driver, image());
    FAIL() << "expected an error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(std::string::npos, text.find("compute capability 9.0, driver for CUDA 13.0")) << text;
    EXPECT_NE(std::string::npos, text.find("AIACC_CUDA_ARCHITECTURES=90")) << text;
  }
}

}  // namespace
}  // namespace aiacc
