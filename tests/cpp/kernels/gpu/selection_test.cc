// The body of the CUDA kernel that selects, run on the host, against the CPU's selection: every
// pair and every bit of the residual.

#include "csrc/kernels/gpu/selection.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/selection/distributions.h"

namespace aiacc {
namespace {

enum class Feedback { kNone, kInPlace, kMoves };

struct Made {
  std::vector<std::uint32_t> wire;
  std::vector<float> residual;
  Selection selection;
};

/// A buffer on both sides, step by step.
class Both {
 public:
  Both(std::size_t count, std::size_t k, SelectMode mode, Feedback feedback, std::size_t shift = 0)
      : count_(count), k_(k), mode_(mode), feedback_(feedback), shift_(shift) {}

  Made on_cpu(const std::vector<float>& in, float factor, std::uint64_t seed) {
    Made made;
    made.wire.resize(2 * k_);
    made.residual = residual_;
    made.residual.resize(count_);
    float* residual = feedback_ == Feedback::kNone ? nullptr : made.residual.data();
    SelectScratch scratch;
    made.selection = select_largest(
        made.wire.data(), in.data(), residual, count_, k_, factor, mode_, seed, track, scratch);
    return made;
  }

  Made on_gpu(const std::vector<float>& in, float factor, std::uint64_t seed) {
    Made made;
    made.wire.assign(2 * k_ + 1, 0x5a5a5a5a);
    std::vector<float> from(shift_ + count_);
    std::vector<float> before(shift_ + count_);
    std::vector<float> after(shift_ + count_, NAN);
    std::copy(in.begin(), in.end(), from.begin() + static_cast<std::ptrdiff_t>(shift_));
    std::copy(
        residual_.begin(), residual_.end(), before.begin() + static_cast<std::ptrdiff_t>(shift_));
    const bool keeps = feedback_ != Feedback::kNone;
    std::vector<float>& out = feedback_ == Feedback::kMoves ? after : before;
    std::vector<unsigned char> workspace(select_workspace_bytes(count_, k_) + 1, 0xa5);
    ++steps_;
    select_on_host(plan_selection(made.wire.data(),
                                  from.data() + shift_,
                                  keeps ? before.data() + shift_ : nullptr,
                                  keeps ? out.data() + shift_ : nullptr,
                                  count_,
                                  k_,
                                  factor,
                                  mode_,
                                  seed,
                                  &state,
                                  workspace.data()),
                   1 + steps_ % 3,
                   steps_ % 2 == 0);
    EXPECT_EQ(0xa5, workspace.back());
    EXPECT_EQ(0x5a5a5a5a, made.wire.back());
    made.wire.pop_back();
    made.residual.assign(out.begin() + static_cast<std::ptrdiff_t>(shift_), out.end());
    if (!keeps) {
      made.residual.assign(count_, 0.0F);
    }
    made.selection = state.result;
    return made;
  }

  /// One step; the residual goes on with what it left.
  void step(const std::vector<float>& in, float factor, std::uint64_t seed) {
    const Made expected = on_cpu(in, factor, seed);
    const Made got = on_gpu(in, factor, seed);
    ASSERT_EQ(expected.selection.finite, got.selection.finite);
    ASSERT_TRUE(same(expected.selection.threshold, got.selection.threshold))
        << expected.selection.threshold << " and " << got.selection.threshold;
    ASSERT_EQ(expected.wire, got.wire);
    for (std::size_t i = 0; i < count_; ++i) {
      ASSERT_TRUE(same(expected.residual[i], got.residual[i])) << i;
    }
    residual_ = got.residual;
  }

  ThresholdTrack track;
  SelectState state = {};

 private:
  std::size_t count_;
  std::size_t k_;
  SelectMode mode_;
  Feedback feedback_;
  std::size_t shift_;
  std::vector<float> residual_;
  std::uint32_t steps_ = 0;
};

class GpuSelectionTest : public testing::TestWithParam<SelectMode> {};

constexpr Feedback kFeedbacks[] = {Feedback::kNone, Feedback::kInPlace, Feedback::kMoves};

TEST_P(GpuSelectionTest, EveryShapeAndSize) {
  for (const Shape shape : all_shapes()) {
    for (const std::size_t count : {1, 2999, 8192, 20011}) {
      for (const std::size_t k : {std::size_t{1}, count / 100, count / 3, count}) {
        if (k == 0) {
          continue;
        }
        for (const Feedback feedback : kFeedbacks) {
          if (count > 16 * kSelectStrip && feedback != Feedback::kMoves) {
            continue;  // the smaller ones tell it
          }
          SCOPED_TRACE("shape " + std::to_string(static_cast<int>(shape)) + ", " +
                       std::to_string(k) + " of " + std::to_string(count) + ", feedback " +
                       std::to_string(static_cast<int>(feedback)));
          Both both(count, k, GetParam(), feedback);
          for (std::uint32_t step = 0; step < 2; ++step) {
            both.step(elements_of(shape, count, step), -0.7F, step);
            if (HasFatalFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

TEST_P(GpuSelectionTest, AtAnyMultipleOfFour) {
  for (const std::size_t shift : {1, 2, 3}) {
    Both both(9001, 90, GetParam(), Feedback::kMoves, shift);
    for (std::uint32_t step = 0; step < 2; ++step) {
      both.step(elements_of(Shape::kLaplace, 9001, step), 1.0F, step);
    }
  }
}

TEST_P(GpuSelectionTest, WhatIsNotFiniteIsNamedAndLeavesTheResidual) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const std::size_t where : {0, 8192, 16000}) {
      for (const std::size_t k : {1, 16001}) {
        for (const Feedback feedback : kFeedbacks) {
          Both both(16001, k, GetParam(), feedback);
          both.step(elements_of(Shape::kGaussian, 16001, 1), 1.0F, 1);
          const ThresholdTrack before = both.state.track;
          std::vector<float> in = elements_of(Shape::kGaussian, 16001, 2);
          in[where] = bad;
          in[16000] = bad;
          const Made expected = both.on_cpu(in, 1.0F, 2);
          const Made got = both.on_gpu(in, 1.0F, 2);
          ASSERT_FALSE(got.selection.finite);
          ASSERT_TRUE(same(before.predicted, both.state.track.predicted));
          ASSERT_EQ(before.hits, both.state.track.hits);
          for (std::size_t i = 0; i < expected.residual.size(); ++i) {
            ASSERT_TRUE(same(expected.residual[i], got.residual[i]));
          }
          for (std::size_t i = 0; i < 2 * k; ++i) {
            float a;
            float b;
            std::memcpy(&a, &expected.wire[i], sizeof a);
            std::memcpy(&b, &got.wire[i], sizeof b);
            ASSERT_TRUE(same(a, b)) << i;
          }
          both.step(elements_of(Shape::kGaussian, 16001, 3), 1.0F, 3);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes,
                         GpuSelectionTest,
                         testing::Values(SelectMode::kTracked,
                                         SelectMode::kExact,
                                         SelectMode::kReference),
                         [](const auto& test) {
                           return test.param == SelectMode::kTracked ? "tracked"
                                  : test.param == SelectMode::kExact ? "exact"
                                                                     : "reference";
                         });

/// Under feedback the track hits, and it moves as the CPU's does.
TEST(GpuSelection, TheTrackIsTheCpus) {
  Both both(20000, 200, SelectMode::kTracked, Feedback::kMoves);
  for (std::uint32_t step = 0; step < 40; ++step) {
    both.step(elements_of(Shape::kLayers, 20000, step), 1.0F, step);
    ASSERT_EQ(both.track.hits, both.state.track.hits) << step;
    ASSERT_EQ(both.track.fallbacks, both.state.track.fallbacks) << step;
    ASSERT_TRUE(same(both.track.spread, both.state.track.spread)) << step;
  }
  EXPECT_GT(both.state.track.hits, 20U);
}

/// Predictions of all kinds, among them those that no step leaves behind.
TEST(GpuSelection, APredictionThatFailsFallsBack) {
  for (const float predicted : {1e-30F, 0.5F, 1.5F, 3.0F, 100.0F, INFINITY, NAN}) {
    for (const float spread : {0.0F, 0.05F, 0.5F, NAN}) {
      SCOPED_TRACE(std::to_string(predicted) + " by " + std::to_string(spread));
      Both both(30000, 300, SelectMode::kTracked, Feedback::kInPlace);
      both.track.predicted = predicted;
      both.track.spread = spread;
      both.state.track = both.track;
      both.step(elements_of(Shape::kGaussian, 30000, 1), 1.0F, 1);
      EXPECT_TRUE(same(both.track.predicted, both.state.track.predicted));
    }
  }
}

/// Large enough for a sample to foretell the threshold.
TEST(GpuSelection, ASampleForetellsTheThreshold) {
  constexpr std::size_t kCount = kSelectLeastSampled + 777;
  for (const Shape shape : all_shapes()) {
    for (const std::size_t k : {std::size_t{1}, kCount / 100, kCount}) {
      SCOPED_TRACE("shape " + std::to_string(static_cast<int>(shape)) + ", " + std::to_string(k));
      Both both(kCount, k, SelectMode::kExact, Feedback::kMoves);
      both.step(elements_of(shape, kCount, 1), 0.7F, 1);
    }
  }
}

/// What the sample sees is too large, or too small.
TEST(GpuSelection, ASampleThatMisleadsChangesNothing) {
  constexpr std::size_t kCount = kSelectLeastSampled + 777;
  for (const bool sees_large : {false, true}) {
    for (const SelectMode mode : {SelectMode::kExact, SelectMode::kTracked}) {
      std::vector<float> in = elements_of(Shape::kGaussian, kCount, 1);
      for (std::size_t i = 0; i < kCount; ++i) {
        const bool is_seen = i / 128 % kSelectSampled == 0;
        in[i] *= is_seen == sees_large ? 1024.0F : 1.0F;
      }
      for (const std::size_t k : {kCount / 1000, kCount / 30}) {
        SCOPED_TRACE(std::to_string(k) + (sees_large ? ", large ones seen" : ", none seen"));
        Both both(kCount, k, mode, Feedback::kInPlace);
        both.step(in, 1.0F, 1);
        both.step(in, 1.0F, 2);
      }
    }
  }
}

TEST(GpuSelection, RefusesWhatItCannotSelect) {
  std::vector<float> memory(64);
  SelectState state = {};
  const auto plan = [&](void* wire, std::size_t count, std::size_t k) {
    return plan_selection(wire,
                          memory.data(),
                          nullptr,
                          nullptr,
                          count,
                          k,
                          1.0F,
                          SelectMode::kExact,
                          0,
                          &state,
                          memory.data());
  };
  EXPECT_THROW(plan(memory.data(), 8, 0), Error);
  EXPECT_THROW(plan(memory.data(), 8, 9), Error);
  EXPECT_THROW(plan(memory.data(), std::size_t{1} << 32, 9), Error);
  EXPECT_THROW(plan(reinterpret_cast<unsigned char*>(memory.data()) + 1, 8, 1), Error);
  EXPECT_NO_THROW(plan(memory.data(), 8, 8));
}

}  // namespace
}  // namespace aiacc
