// What holds for everything that launches kernels.

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/batch_copier.h"
#include "csrc/kernels/gpu/block_coder.h"
#include "csrc/kernels/gpu/device_selector.h"
#include "csrc/kernels/gpu/optim/device_factors.h"
#include "csrc/kernels/gpu/optim/device_lamb.h"
#include "csrc/kernels/gpu/optim/device_lars.h"
#include "csrc/kernels/gpu/optim/tensor_chunks.h"
#include "csrc/kernels/gpu/pair_adder.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"

namespace aiacc {
namespace {

/// Memory for what is launched: of the host, as a GPU in software has it.
struct Room {
  std::vector<double> doubles = std::vector<double>(1 << 16);
  float* at(std::size_t place) { return reinterpret_cast<float*>(doubles.data() + 8 * place); }
};

// Each queues something on so many elements.

void queue(BatchCopier& copier, CudaStream stream, Room& room, std::size_t count) {
  copier.enqueue(stream, {}, {{room.at(0), room.at(1), count}, {room.at(2), room.at(3), count}});
}
void queue(const BlockCoder& coder, CudaStream stream, Room& room, std::size_t count) {
  coder.encode(stream, room.at(0), room.at(9), nullptr, count, {}, 1, {}, 0);
  coder.decode(stream, room.at(9), room.at(0), count, {}, 1);
}
void queue(const PairAdder& adder, CudaStream stream, Room& room, std::size_t count) {
  adder.add(stream, room.at(0), room.at(1), count, 1);
}
void queue(DeviceFactors& factors, CudaStream stream, Room& room, std::size_t count) {
  const FactorStack stack = {room.at(0), room.at(1), count, 1, count, 0};
  factors.run(stream, FactorWork::kPack, DataType::kFloat32, {stack});
  factors.run(stream, FactorWork::kPack, DataType::kFloat32, {});
}
void queue(DeviceLars& lars, CudaStream stream, Room& room, std::size_t count) {
  lars.step(stream, {{room.at(0), room.at(1), room.at(2), count}}, {}, nullptr, room.at(9));
  lars.step(stream, {}, {}, nullptr, room.at(9));
}
void queue(DeviceLamb& lamb, CudaStream stream, Room& room, std::size_t count) {
  const LambTensor tensor = {room.at(0), room.at(1), room.at(2), room.at(3), nullptr, 1.0, count};
  lamb.step(stream, {tensor}, {}, {nullptr, nullptr, room.at(9)});
}
/// Nothing is selected of nothing: that is not asked for.
void queue(const DeviceSelector& selector, CudaStream stream, Room& room, std::size_t count) {
  if (count > 0) {
    static SelectState state;
    selector.select(stream,
                    plan_selection(room.at(0),
                                   room.at(1),
                                   nullptr,
                                   nullptr,
                                   count,
                                   1,
                                   1,
                                   SelectMode::kExact,
                                   0,
                                   &state,
                                   room.at(10)));
  }
}

template <class Kernels>
class DeviceKernelsTest : public GpuKernelsTest {
 protected:
  /// Code and text of the error of `call`.
  template <class Call>
  static std::string error_of(Call call, Code code) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(code, error.code());
      return error.what();
    }
    return "no error";
  }

  Room room_;
};
using All = testing::Types<BatchCopier,
                           BlockCoder,
                           PairAdder,
                           DeviceFactors,
                           DeviceLars,
                           DeviceLamb,
                           DeviceSelector>;
TYPED_TEST_SUITE(DeviceKernelsTest, All);

TYPED_TEST(DeviceKernelsTest, NothingLaunchesNothing) {
  TypeParam kernels(this->driver(), this->image());
  queue(kernels, this->rig_.stream(), this->room_, 0);
  EXPECT_EQ(0, this->cuda_.launches());
  queue(kernels, this->rig_.stream(), this->room_, 1);
  this->cuda_.drain();
  EXPECT_LT(0, this->cuda_.launches());
  EXPECT_EQ(0, this->cuda_.misuses());
}

TYPED_TEST(DeviceKernelsTest, ABrokenDeviceFailsTheLaunch) {
  TypeParam kernels(this->driver(), this->image());
  this->cuda_.break_with(700);
  const std::string text =
      this->error_of([&] { queue(kernels, this->rig_.stream(), this->room_, 1); }, Code::kEngine);
  EXPECT_EQ(0U, text.find("[cuda] launch")) << text;
  EXPECT_NE(std::string::npos, text.find(" failed: CUDA_ERROR_FAKE (a fake's error)")) << text;
  this->cuda_.break_with(kCudaSuccess);
}

TYPED_TEST(DeviceKernelsTest, ABuildWithoutKernelsSaysSo) {
  const std::string text =
      this->error_of([&] { TypeParam(this->driver(), DeviceImage{}); }, Code::kUnsupported);
  EXPECT_NE(std::string::npos, text.find("no CUDA kernels")) << text;
}

TYPED_TEST(DeviceKernelsTest, AnImageThatDoesNotLoadNamesDeviceAndDriver) {
  CudaDriver driver = this->driver();
  driver.module_load = [](CudaModule*, const void*) { return 209; };
  const std::string text = this->error_of([&] { TypeParam(driver, this->image()); }, Code::kEngine);
  EXPECT_NE(std::string::npos, text.find("compute capability 9.0, driver for CUDA 13.0")) << text;
  EXPECT_NE(std::string::npos, text.find("AIACC_CUDA_ARCHITECTURES=90")) << text;
}

}  // namespace
}  // namespace aiacc
