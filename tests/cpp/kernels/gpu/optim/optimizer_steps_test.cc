// The kernels of LARS and LAMB: their bodies on the host, and launched on a GPU in software. What
// they have to give is in optimizer_check.h.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/kernels/gpu/optim/optimizer_check.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

template <class Algorithm>
class OptimizerStepsTest : public GpuKernelsTest {};
using Algorithms = testing::Types<Lars, Lamb>;
TYPED_TEST_SUITE(OptimizerStepsTest, Algorithms);

TYPED_TEST(OptimizerStepsTest, EqualTheEquationsAtAnyMultipleOfFour) {
  const OptimizerTwin<TypeParam> twin = {3, 5, true};
  for (const auto& job : TypeParam::cases()) {
    for (const std::size_t shift : {0, 1, 2, 3}) {
      for (const bool on_device : {false, true}) {
        EXPECT_EQ("",
                  check_steps<TypeParam>(
                      this->rig_, twin, 3, job, optimizer_sizes(), {shift, on_device}));
      }
    }
  }
}

TYPED_TEST(OptimizerStepsTest, BlocksOfAnyNumberAndOrderGiveTheSameBits) {
  const auto usual = TypeParam::cases().front();
  for (const std::uint32_t blocks : {1U, 2U, 4U, 5U, 7U, 12U, 13U, 1000U}) {
    for (const bool backwards : {false, true}) {
      const OptimizerTwin<TypeParam> twin = {blocks, blocks, backwards};
      EXPECT_EQ("", check_steps<TypeParam>(this->rig_, twin, blocks, usual, optimizer_sizes(), {}));
    }
  }
}

TYPED_TEST(OptimizerStepsTest, TakeTwoLaunchesForAllTensorsOfABatch) {
  typename TypeParam::Device device(this->driver(), this->image());
  const OptimizerOnDevice<TypeParam> steps(this->rig_, device);
  int launches = 0;
  const auto queued = [&](const typename TypeParam::Step& step) {
    launches = this->launches_of([&] { steps(step); });
  };
  const auto check = [&](const auto& job, std::size_t tensors, int expected) {
    std::vector<std::size_t> sizes(tensors);
    for (std::size_t i = 0; i < tensors; ++i) {
      sizes[i] = i % 40 == 7 ? 9000 : (i + 1) % 40;
    }
    const OptimizerPlace place = {0, tensors % 2 == 0};
    const unsigned norm_blocks = device.norm_blocks(tensors);
    EXPECT_EQ("", check_steps<TypeParam>(this->rig_, queued, norm_blocks, job, sizes, place));
    EXPECT_EQ(expected, launches) << job.name << " of " << tensors;
  };
  constexpr std::size_t kSmall = TypeParam::Small::kTensors;
  constexpr std::size_t kLarge = TypeParam::Large::kTensors;
  for (const auto& job : TypeParam::cases()) {
    check(job, 2, job.options.adapt ? 2 : 1);
    check(job, kSmall + 1, job.options.adapt ? 2 : 1);
  }
  const auto usual = TypeParam::cases().front();
  check(usual, kSmall, 2);
  check(usual, kLarge, 2);
  check(usual, kLarge + 4, 4);
}

TYPED_TEST(OptimizerStepsTest, RefuseWhatTheyCannotDo) {
  std::vector<float> memory(8);
  typename TypeParam::Small batch;
  const auto options = TypeParam::cases().front().options;
  const auto refused = [&](float* const* arrays, std::size_t count) {
    return status_of([&] {
      const typename TypeParam::Step step = {
          {TypeParam::tensor(arrays, count, options, {}, 1)}, options, {}};
      TypeParam::plan(step, 0, 1, nullptr, 1, batch);
    });
  };
  const std::vector<float*> even(TypeParam::kArrays, memory.data());
  expect_error(refused(even.data(), 1), Code::kOk);
  expect_error(refused(even.data(), std::size_t{1} << 43), Code::kInvalidArgument, {"2^31"});
  for (std::size_t kind = 0; kind < TypeParam::kArrays; ++kind) {
    std::vector<float*> odd = even;
    odd[kind] = reinterpret_cast<float*>(reinterpret_cast<char*>(memory.data()) + 1);
    expect_error(refused(odd.data(), 1), Code::kInvalidArgument, {"a multiple of 4"});
  }
}

TEST(LarsPlan, RefusesAMomentumWithoutMemory) {
  float x = 0;
  SmallLarsBatch batch;
  const LarsTensor tensor = {&x, &x, nullptr, 1};
  const auto options = Lars::cases().front().options;
  expect_error(status_of([&] { plan_lars(&tensor, 1, options, nullptr, nullptr, 1, batch); }),
               Code::kInvalidArgument,
               {"memory for its momentum"});
}

}  // namespace
}  // namespace aiacc
