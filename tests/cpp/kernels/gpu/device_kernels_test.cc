// What holds for everything that launches kernels.

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/batch_copier.h"
#include "csrc/kernels/gpu/block_coder.h"
#include "csrc/kernels/gpu/device_selector.h"
#include "csrc/kernels/gpu/optim/device_factors.h"
#include "csrc/kernels/gpu/optim/device_lamb.h"
#include "csrc/kernels/gpu/optim/device_lars.h"
#include "csrc/kernels/gpu/optim/tensor_chunks.h"
#include "csrc/kernels/gpu/pair_adder.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/support/errors.h"

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
  expect_error(status_of([&] { queue(kernels, this->rig_.stream(), this->room_, 1); }),
               Code::kEngine,
               {"[cuda] launch", " failed: CUDA_ERROR_FAKE (a fake's error)"});
  this->cuda_.break_with(kCudaSuccess);
}

TYPED_TEST(DeviceKernelsTest, ABuildWithoutKernelsSaysSo) {
  expect_error(status_of([&] { TypeParam(this->driver(), DeviceImage{}); }),
               Code::kUnsupported,
               {"no CUDA kernels"});
}

TYPED_TEST(DeviceKernelsTest, AnImageThatDoesNotLoadNamesDeviceAndDriver) {
  CudaDriver driver = this->driver();
  driver.module_load = [](CudaModule*, const void*) { return 209; };
  expect_error(status_of([&] { TypeParam(driver, this->image()); }),
               Code::kEngine,
               {"compute capability 9.0, driver for CUDA 13.0", "AIACC_CUDA_ARCHITECTURES=90"});
}

}  // namespace
}  // namespace aiacc
