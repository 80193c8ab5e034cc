#include "csrc/kernels/select.h"

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"
#include "tests/cpp/kernels/selection/selected.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

using Case = std::tuple<const VectorLevel*, SelectMode>;

class SelectTest : public testing::TestWithParam<Case> {
 protected:
  static Selected selected(const SelectInput& input, std::size_t k, ThresholdTrack& track) {
    const auto [level, mode] = GetParam();
    return select(input, k, mode, track, *level);
  }
  static Selected selected(const SelectInput& input, std::size_t k) {
    ThresholdTrack track;
    return selected(input, k, track);
  }
};

/// Exactly k pairs, their indices ascending and so distinct; and nothing is lost: what is decoded
/// and what stays are together, to the bit, what came in.
void expect_whole(const SelectInput& input, const Selected& got, const std::string& what) {
  const std::vector<float> sums = accumulated(input);
  std::vector<float> decoded(sums.size(), 0.0F);
  ASSERT_TRUE(got.told.finite) << what;
  for (std::size_t i = 0; i < got.indices.size(); ++i) {
    ASSERT_LT(got.indices[i], sums.size()) << what;
    ASSERT_TRUE(i == 0 || got.indices[i - 1] < got.indices[i]) << what;
    ASSERT_TRUE(same(sums[got.indices[i]], got.values[i])) << what;
    decoded[got.indices[i]] = got.values[i];
    if (!got.residual.empty()) {
      ASSERT_TRUE(same(0.0F, got.residual[got.indices[i]])) << what;
    }
  }
  for (std::size_t i = 0; i < got.residual.size(); ++i) {
    ASSERT_EQ(sums[i], decoded[i] + got.residual[i]) << what << ", " << i;
  }
}

TEST_P(SelectTest, ChoosesExactlyKAndLosesNothing) {
  for (const Shape shape : all_shapes()) {
    for (const std::size_t count : {1, 2, 17, 2048, 2049, 4500}) {
      for (const bool feedback : {false, true}) {
        SelectInput input = {elements_of(shape, count, 1)};
        input.factor = 0.3F;
        if (feedback) {
          input.residual = elements_of(shape, count, 2);
        }
        for (const std::size_t k :
             {std::size_t{0}, std::size_t{1}, count / 100, count / 3, count - 1, count}) {
          ThresholdTrack track;
          for (int step = 0; step < 2; ++step) {
            const Selected got = selected(input, k, track);
            ASSERT_NO_FATAL_FAILURE(expect_whole(
                input,
                got,
                "shape " + std::to_string(static_cast<int>(shape)) + ", " + std::to_string(k) +
                    " of " + std::to_string(count) + ", step " + std::to_string(step)));
          }
        }
      }
    }
  }
}

TEST_P(SelectTest, EveryLevelWritesTheSameBytes) {
  for (const Shape shape : all_shapes()) {
    SelectInput input = {elements_of(shape, 4501, 5), elements_of(shape, 4501, 6), -0.7F, 9};
    for (const std::size_t k : {45, 1500}) {
      ThresholdTrack track;
      ThresholdTrack plain_track;
      for (int step = 0; step < 3; ++step) {
        const Selected got = selected(input, k, track);
        const Selected plain =
            select(input, k, std::get<1>(GetParam()), plain_track, kBaselineLevel);
        ASSERT_EQ(plain.wire, got.wire) << "shape " << static_cast<int>(shape) << ", k " << k;
        ASSERT_TRUE(same(plain.told.threshold, got.told.threshold));
        ASSERT_EQ(plain.told.fell_back, got.told.fell_back);
        ASSERT_TRUE(same(plain_track.predicted, track.predicted));
        ASSERT_TRUE(same(plain_track.spread, track.spread));
        ASSERT_EQ(
            0,
            std::memcmp(
                plain.residual.data(), got.residual.data(), got.residual.size() * sizeof(float)));
        input.residual = got.residual;
      }
    }
  }
}

TEST_P(SelectTest, NotFiniteIsSentAndLeavesTheResidual) {
  constexpr std::size_t kCount = 5000;
  constexpr float kHuge = std::numeric_limits<float>::max();
  for (const float bad : {NAN, INFINITY, -INFINITY, kHuge}) {
    for (const std::size_t place : {0, 3, 2047, 2048, 4999}) {
      for (const std::size_t k : {1, 50, 5000}) {
        for (const bool in_residual : {false, true}) {
          SelectInput input = {elements_of(Shape::kGaussian, kCount, 1),
                               elements_of(Shape::kGaussian, kCount, 2)};
          ThresholdTrack track;
          selected(input, k, track);  // now there is a prediction
          const ThresholdTrack before = track;
          (in_residual ? input.residual : input.in)[place] = bad;
          if (bad == kHuge) {
            input.in[place] = input.residual[place] = kHuge;  // their sum is infinite
          }
          const Selected got = selected(input, k, track);
          ASSERT_FALSE(got.told.finite);
          ASSERT_EQ(
              0, std::memcmp(got.residual.data(), input.residual.data(), kCount * sizeof(float)));
          ASSERT_TRUE(same(before.predicted, track.predicted));
          ASSERT_EQ(before.hits + before.fallbacks, track.hits + track.fallbacks);
          std::size_t met = 0;
          for (std::size_t i = 0; i < k; ++i) {
            ASSERT_LT(got.indices[i], kCount);
            ASSERT_TRUE(i == 0 || got.indices[i - 1] < got.indices[i]);
            if (got.indices[i] == place) {
              ASSERT_FALSE(std::isfinite(got.values[i])) << place;
              ++met;
            } else {
              ASSERT_EQ(0.0F, got.values[i]);
            }
          }
          ASSERT_EQ(1U, met) << place << " of k " << k;
        }
      }
    }
  }
}

TEST_P(SelectTest, WithoutPairsTheResidualTakesEverythingFinite) {
  SelectInput input = {{1.0F, -2.0F}, {0.5F, 0.25F}};
  EXPECT_EQ((std::vector<float>{1.5F, -1.75F}), selected(input, 0).residual);
  input.in[1] = NAN;
  const Selected got = selected(input, 0);
  EXPECT_FALSE(got.told.finite);
  EXPECT_EQ(input.residual, got.residual);
  EXPECT_TRUE(selected({{}}, 0).told.finite) << "of nothing";
}

/// The run among equals begins anywhere, the last place included, and never runs short.
TEST_P(SelectTest, TheSeedPlacesTheRunAmongEquals) {
  SelectInput input = {std::vector<float>(10, 1.0F)};
  std::set<std::uint32_t> begins;
  for (input.seed = 0; input.seed < 200; ++input.seed) {
    const Selected got = selected(input, 3);
    ASSERT_EQ(got.indices[0] + 1, got.indices[1]);
    ASSERT_EQ(got.indices[0] + 2, got.indices[2]);
    ASSERT_EQ(got.wire, selected(input, 3).wire) << "not the same for the same seed";
    begins.insert(got.indices[0]);
  }
  EXPECT_EQ((std::set<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}), begins);
}

INSTANTIATE_TEST_SUITE_P(All,
                         SelectTest,
                         testing::Combine(every_level(), testing::ValuesIn(select_modes())),
                         NameOfCase());

TEST(SelectedCount, IsTheDensityRoundedUp) {
  EXPECT_EQ(0U, selected_count(0, 0.5));
  EXPECT_EQ(1U, selected_count(10, 0.0));
  EXPECT_EQ(1U, selected_count(10, 0.01));
  EXPECT_EQ(10U, selected_count(1000, 0.01));
  EXPECT_EQ(11U, selected_count(1001, 0.01));
  EXPECT_EQ(1000U, selected_count(1000, 1.0));
  EXPECT_EQ(250000U, selected_count(25000000, 0.01));
}

TEST(SelectedCount, RefusesWhatIsNoDensity) {
  for (const double density : {-0.1, 1.5, static_cast<double>(NAN)}) {
    expect_error(status_of([&] { selected_count(10, density); }),
                 Code::kInvalidArgument,
                 {std::to_string(density)});
  }
}

std::vector<unsigned char> wire_of(const std::vector<float>& values,
                                   const std::vector<std::uint32_t>& indices) {
  std::vector<unsigned char> wire(pairs_bytes(values.size()));
  std::memcpy(wire.data(), values.data(), values.size() * 4);
  std::memcpy(wire.data() + values.size() * 4, indices.data(), indices.size() * 4);
  return wire;
}

TEST(ScatterAdd, AddsTimesTheFactor) {
  std::vector<float> out = {1.0F, 2.0F, 3.0F};
  scatter_add(out.data(), wire_of({4.0F, -1.0F}, {2, 0}).data(), 2, 3, 0.5F);
  EXPECT_EQ((std::vector<float>{0.5F, 2.0F, 5.0F}), out);
  scatter_add(out.data(), nullptr, 0, 3, 1.0F);
  EXPECT_EQ((std::vector<float>{0.5F, 2.0F, 5.0F}), out);
}

TEST(ScatterAdd, RefusesAnIndexBeyondTheEndAndWritesNothing) {
  for (const std::uint32_t index : {3U, 0xffffffffU}) {
    std::vector<float> out = {1.0F, 2.0F, 3.0F};
    const auto wire = wire_of({4.0F, 5.0F}, {0, index});
    expect_error(status_of([&] { scatter_add(out.data(), wire.data(), 2, 3, 1.0F); }),
                 Code::kInternal,
                 {std::to_string(index)});
    EXPECT_EQ((std::vector<float>{1.0F, 2.0F, 3.0F}), out);
  }
}

}  // namespace
}  // namespace aiacc
