// The kernels that select, and the one that adds up what was selected: their bodies on the host,
// and launched on a GPU in software. What they have to give is in selection_check.h.

#include "csrc/kernels/gpu/selection.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/device_selector.h"
#include "csrc/kernels/gpu/pair_adder.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/kernels/gpu/selection_check.h"

namespace aiacc {
namespace {

class GpuSelectionTest : public GpuKernelsTest {
 protected:
  /// So many steps by the bodies on the host, of blocks in any number and order.
  void check(const SelectionCase& job, Shape shape, std::uint32_t steps) {
    SelectionOfBoth both(rig_, job);
    for (std::uint32_t step = 0; step < steps; ++step) {
      ASSERT_EQ("", both.step(elements_of(shape, job.count, step), twin_))
          << "shape " << static_cast<int>(shape);
    }
  }

  std::uint32_t runs_ = 0;
  const std::function<void(const SelectPlan&)> twin_ = [this](const SelectPlan& plan) {
    ++runs_;
    select_on_host(plan, 1 + runs_ % 3, runs_ % 2 == 0);
  };
};

class GpuSelectionModesTest : public GpuSelectionTest,
                              public testing::WithParamInterface<SelectMode> {};

TEST_P(GpuSelectionModesTest, EveryShapeAndSizeGivesTheBitsOfTheCpu) {
  for (const Shape shape : all_shapes()) {
    for (const std::size_t count : {1, 2999, 8192, 20011}) {
      for (const std::size_t k : {std::size_t{1}, count / 100, count / 3, count}) {
        for (const Feedback feedback : kFeedbacks) {
          // Of large ones without moves the smaller ones tell it.
          if (k > 0 && (count <= 16 * kSelectStrip || feedback == Feedback::kMoves)) {
            ASSERT_NO_FATAL_FAILURE(check({GetParam(), count, k, feedback}, shape, 2));
          }
        }
      }
    }
  }
  for (const std::size_t shift : {1, 2, 3}) {
    check({GetParam(), 9001, 90, Feedback::kMoves, shift}, Shape::kLaplace, 2);
  }
}

TEST_P(GpuSelectionModesTest, WhatIsNotFiniteIsNamedAndLeavesResidualAndTrack) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const std::size_t where : {0, 8192, 16000}) {
      for (const std::size_t k : {1, 16001}) {
        for (const Feedback feedback : kFeedbacks) {
          SelectionOfBoth both(rig_, {GetParam(), 16001, k, feedback});
          for (const std::uint32_t step : {1, 2, 3}) {
            std::vector<float> in = elements_of(Shape::kGaussian, 16001, step);
            if (step == 2) {
              in[where] = bad;
              in[16000] = bad;
            }
            ASSERT_EQ("", both.step(in, twin_));
            ASSERT_EQ(step != 2, both.finite());
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes,
                         GpuSelectionModesTest,
                         testing::ValuesIn(kGpuSelectModes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_F(GpuSelectionTest, UnderFeedbackTheTrackHitsAsTheCpus) {
  SelectionOfBoth both(rig_, {SelectMode::kTracked, 20000, 200});
  for (std::uint32_t step = 0; step < 40; ++step) {
    ASSERT_EQ("", both.step(elements_of(Shape::kLayers, 20000, step), twin_));
    const ThresholdTrack track = both.track_of_kernels();
    ASSERT_EQ(both.track().hits, track.hits) << step;
    ASSERT_EQ(both.track().fallbacks, track.fallbacks) << step;
    ASSERT_TRUE(same(both.track().spread, track.spread)) << step;
  }
  EXPECT_GT(both.track().hits, 20U);
}

/// Predictions of all kinds, among them those that no step leaves behind.
TEST_F(GpuSelectionTest, APredictionThatFailsFallsBack) {
  for (const float predicted : {1e-30F, 0.5F, 1.5F, 3.0F, 100.0F, INFINITY, NAN}) {
    for (const float spread : {0.0F, 0.05F, 0.5F, NAN}) {
      const SelectionCase job = {SelectMode::kTracked, 30000, 300, Feedback::kInPlace};
      SelectionOfBoth both(rig_, job, {predicted, spread});
      EXPECT_EQ("", both.step(elements_of(Shape::kGaussian, 30000, 1), twin_))
          << predicted << " by " << spread;
    }
  }
}

constexpr std::size_t kSampled = kSelectLeastSampled + 777;  // so many that a sample foretells

TEST_F(GpuSelectionTest, ASampleForetellsTheThreshold) {
  for (const Shape shape : all_shapes()) {
    for (const std::size_t k : {std::size_t{1}, kSampled / 100, kSampled}) {
      ASSERT_NO_FATAL_FAILURE(check({SelectMode::kExact, kSampled, k}, shape, 1));
    }
  }
}

/// What the sample sees is too large, or too small.
TEST_F(GpuSelectionTest, ASampleThatMisleadsChangesNothing) {
  for (const bool sees_large : {false, true}) {
    std::vector<float> in = elements_of(Shape::kGaussian, kSampled, 1);
    for (std::size_t i = 0; i < kSampled; ++i) {
      const bool is_seen = i / 128 % kSelectSampled == 0;
      in[i] *= is_seen == sees_large ? 1024.0F : 1.0F;
    }
    for (const SelectMode mode : kGpuSelectModes) {
      for (const std::size_t k : {kSampled / 1000, kSampled / 30}) {
        SelectionOfBoth both(rig_, {mode, kSampled, k, Feedback::kInPlace});
        EXPECT_EQ("", both.step(in, twin_)) << sees_large;
        EXPECT_EQ("", both.step(in, twin_)) << sees_large;
      }
    }
  }
}

TEST_F(GpuSelectionTest, TakesThreeLaunchesAStep) {
  const DeviceSelector selector(driver(), image());
  SelectionOfBoth both(rig_, {SelectMode::kTracked, 50000, 500});
  for (std::uint32_t step = 0; step < 4; ++step) {
    EXPECT_EQ("", both.step(elements_of(Shape::kLaplace, 50000, step), [&](const auto& plan) {
      EXPECT_EQ(3, launches_of([&] { selector.select(rig_.stream(), plan); }));
    }));
  }
  EXPECT_GT(both.track_of_kernels().hits, 0U);
}

TEST(GpuSelectionPlan, RefusesWhatItCannotSelect) {
  std::vector<float> memory(64);
  float* const at = memory.data();
  SelectState state = {};
  const auto plan = [&](void* wire, std::size_t count, std::size_t k) {
    plan_selection(wire, at, nullptr, nullptr, count, k, 1.0F, SelectMode::kExact, 0, &state, at);
  };
  EXPECT_THROW(plan(at, 8, 0), Error);
  EXPECT_THROW(plan(at, 8, 9), Error);
  EXPECT_THROW(plan(at, std::size_t{1} << 32, 9), Error);
  EXPECT_THROW(plan(reinterpret_cast<unsigned char*>(at) + 1, 8, 1), Error);
  EXPECT_NO_THROW(plan(at, 8, 8));
}

using PairAdderTest = GpuKernelsTest;

TEST_F(PairAdderTest, AddsWhatTheHostAdds) {
  const PairAdder adder(driver(), image());
  for (const std::size_t pairs : {1, 3000}) {  // more than threads run
    EXPECT_EQ("", check_sum_of_pairs(rig_, adder, 10'000, pairs));
  }
}

TEST_F(PairAdderTest, AnIndexBeyondTheElementsIsSeen) {
  const PairAdder adder(driver(), image());
  const float values[] = {1, 2, 3};
  std::vector<std::uint32_t> wire = {0, 0, 0, 0, 0xffffffff, 7};
  std::memcpy(wire.data(), values, sizeof values);
  std::vector<float> out(9, 1.0F);
  EXPECT_EQ(1, launches_of([&] { adder.add(rig_.stream(), out.data(), wire.data(), 3, 8); }));
  EXPECT_EQ(1, std::count_if(out.begin(), out.end(), [](float x) { return std::isnan(x); }));
  EXPECT_EQ(2.0F, out[0]);
  EXPECT_EQ(4.0F, out[7]);
  EXPECT_EQ(1.0F, out[8]) << "beyond the elements";
}

}  // namespace
}  // namespace aiacc
