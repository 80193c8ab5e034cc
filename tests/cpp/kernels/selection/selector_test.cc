// Which elements the modes choose; tests/cpp/kernels/select_test.cc has what all of them promise.

#include "csrc/kernels/selection/selector.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/selection/candidates.h"
#include "csrc/kernels/selection/mstopk.h"
#include "csrc/kernels/selection/threshold_track.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"
#include "tests/cpp/kernels/selection/selected.h"

namespace aiacc {
namespace {

/// Predictions that are right, too high, too low, too wide, and nonsense.
std::vector<ThresholdTrack> tracks_for(float threshold) {
  std::vector<ThresholdTrack> tracks(1);
  for (const float predicted : {threshold,
                                threshold * 1.02F,
                                threshold * 1e9F,
                                threshold * 0.5F,
                                threshold * 1e-9F,
                                static_cast<float>(NAN),
                                static_cast<float>(INFINITY)}) {
    for (const float spread : {0.05F, 0.5F, static_cast<float>(NAN)}) {
      tracks.push_back({predicted, spread, 3, 4});
    }
  }
  return tracks;
}

TEST(SelectorExact, IsWhatASortFinds) {
  for (const Shape shape : all_shapes()) {
    const SelectInput input = {elements_of(shape, 30000, 3), elements_of(shape, 30000, 4)};
    const std::vector<float> sorted = sorted_magnitudes(accumulated(input));
    for (const std::size_t k : {1, 300, 10000, 29999}) {
      const Selected got = select(input, k, SelectMode::kExact);
      const std::vector<float> expected(sorted.begin(),
                                        sorted.begin() + static_cast<std::ptrdiff_t>(k));
      ASSERT_EQ(expected, sorted_magnitudes(got.values))
          << "shape " << static_cast<int>(shape) << ", k " << k;
      ASSERT_EQ(expected.back(), got.told.threshold);
    }
  }
}

/// Without any threshold, in every order: one pass finds the k largest in bounded memory.
TEST(SelectorExact, CandidatesAreThinnedWhereTheyAreTooMany) {
  constexpr std::size_t kCount = 200'000;
  constexpr std::size_t kMost = 2000;
  for (const Shape shape : {Shape::kGaussian, Shape::kAscending, Shape::kStudent}) {
    const std::vector<float> elements = elements_of(shape, kCount, 2);
    const Source source(kBaselineLevel, elements.data(), nullptr, kCount, 1.0F);
    SelectScratch scratch;
    Candidates candidates(source, kMost, scratch);
    EXPECT_EQ(Scan::kHit, candidates.find(0).scan);
    EXPECT_LE(candidates.size(), candidate_room(kCount, kMost));
    EXPECT_LE(scratch.values.size(), candidate_room(kCount, kMost) + Candidates::kSlack);
    const std::vector<float> sorted = sorted_magnitudes(elements);
    EXPECT_EQ(Scan::kHit, candidates.find(magnitude_bits(sorted[kMost - 1])).scan);
    EXPECT_EQ(Scan::kTooFew, candidates.find(magnitude_bits(sorted[kMost - 2])).scan);
  }
}

/// So its recall is 1 whatever was predicted.
TEST(SelectorTracked, IsExactWhateverThePrediction) {
  for (const Shape shape : all_shapes()) {
    const SelectInput input = {elements_of(shape, 30000, 3), elements_of(shape, 30000, 4), 0.9F, 5};
    for (const std::size_t k : {1, 300, 6000}) {
      const Selected expected = select(input, k, SelectMode::kExact);
      for (ThresholdTrack track : tracks_for(expected.told.threshold)) {
        const ThresholdTrack before = track;
        const Selected got = select(input, k, SelectMode::kTracked, track);
        ASSERT_EQ(expected.wire, got.wire) << "shape " << static_cast<int>(shape) << ", k " << k
                                           << ", predicted " << before.predicted;
        ASSERT_EQ(expected.residual, got.residual);
        ASSERT_EQ(expected.told.threshold, track.predicted);
        ASSERT_EQ(before.fallbacks + static_cast<std::uint64_t>(got.told.fell_back),
                  track.fallbacks);
      }
    }
  }
}

TEST(SelectorTracked, FallsBackWhereTooFewReachThePredictionAndOnlyThere) {
  const SelectInput input = {elements_of(Shape::kGaussian, 100000, 3)};
  const float threshold = select(input, 1000, SelectMode::kExact).told.threshold;
  for (const float ratio : {1e-9F, 0.5F, 0.9F, 1.0F, 1.02F}) {
    ThresholdTrack track = {threshold * ratio, 0.05F, 0, 0};
    EXPECT_FALSE(select(input, 1000, SelectMode::kTracked, track).told.fell_back) << ratio;
    EXPECT_EQ(1U, track.hits);
  }
  ThresholdTrack track = {threshold * 1.1F, 0.05F, 0, 0};
  EXPECT_TRUE(select(input, 1000, SelectMode::kTracked, track).told.fell_back);
  EXPECT_EQ(1U, track.fallbacks);
}

/// 200 steps of error feedback on gradients that drift, or collapse in the middle. The first step
/// has no prediction; from the second on they hold.
TEST(SelectorTracked, FollowsTheThresholdOfErrorFeedback) {
  constexpr std::size_t kCount = 60000;
  struct Row {
    Shape shape;
    std::size_t k;
    bool collapses;
    std::uint64_t fallbacks;
  };
  for (const auto& [shape, k, collapses, fallbacks] : {Row{Shape::kGaussian, 60, false, 0},
                                                       Row{Shape::kGaussian, 600, false, 0},
                                                       Row{Shape::kGaussian, 600, true, 2},
                                                       Row{Shape::kLayers, 600, false, 0},
                                                       Row{Shape::kLayers, 600, true, 2},
                                                       Row{Shape::kStudent, 600, false, 0},
                                                       Row{Shape::kStudent, 600, true, 2}}) {
    const std::vector<float> means = elements_of(shape, kCount, 11);
    const std::vector<float> later_means = elements_of(shape, kCount, 12);
    SelectInput input;
    input.in.resize(kCount);
    input.residual.assign(kCount, 0.0F);
    ThresholdTrack track;
    for (std::uint32_t step = 0; step < 200; ++step) {
      const float done = static_cast<float>(step) / 200.0F;
      const float scale = collapses ? (step < 100 ? 1.0F : 0.05F) : 1.0F - 0.7F * done;
      const std::vector<float> noise = elements_of(shape, kCount, 100 + step);
      for (std::size_t i = 0; i < kCount; ++i) {
        const float mean = (1.0F - done) * means[i] + done * later_means[i];
        input.in[i] = scale * (noise[i] + 0.3F * mean);
      }
      input.seed = step;
      const Selected got = select(input, k, SelectMode::kTracked, track);
      ASSERT_EQ(select(input, k, SelectMode::kExact).wire, got.wire) << step;
      input.residual = got.residual;
    }
    EXPECT_EQ(199U, track.hits + track.fallbacks);
    EXPECT_LE(track.fallbacks, fallbacks)
        << "k " << k << ", shape " << static_cast<int>(shape) << ", spread " << track.spread;
  }
}

/// The loop of MSTopK as it is written down, one threshold after the other.
Bracket bisect_plainly(const std::vector<float>& elements,
                       const Magnitudes& magnitudes,
                       std::size_t k,
                       int bisections) {
  Bracket bracket = {std::numeric_limits<float>::infinity(), 0.0F, 0, elements.size()};
  double low = 0.0;
  double high = 1.0;
  for (int i = 0; i < bisections; ++i) {
    const double middle = (low + high) / 2;
    const auto threshold = static_cast<float>(
        magnitudes.mean + middle * (static_cast<double>(magnitudes.largest) - magnitudes.mean));
    std::size_t count = 0;
    for (const float element : elements) {
      count += static_cast<std::size_t>(std::fabs(element) >= threshold);
    }
    if (count <= k) {
      high = middle;
      if (count > bracket.above) {
        bracket.above = count;
        bracket.high = threshold;
      }
    } else {
      low = middle;
      if (count < bracket.reached) {
        bracket.reached = count;
        bracket.low = threshold;
      }
    }
  }
  return bracket;
}

class MstopkTest : public testing::TestWithParam<const VectorLevel*> {
 protected:
  static Source source_of(const std::vector<float>& elements) {
    return {*GetParam(), elements.data(), nullptr, elements.size(), 1.0F};
  }
};

/// To the bit, so no tolerance: (t1, t2) and both counts.
TEST_P(MstopkTest, SeveralHalvingsInOnePassAreTheSequentialBisection) {
  for (const Shape shape : all_shapes()) {
    const std::vector<float> elements = elements_of(shape, 6007, 3);
    const Source source = source_of(elements);
    const Magnitudes magnitudes = measure_magnitudes(source);
    for (const std::size_t k : {1, 6, 60, 600, 3000, 6006}) {
      for (const int bisections : {0, 1, 4, 6, 10, 30}) {
        const Bracket expected = bisect_plainly(elements, magnitudes, k, bisections);
        const Bracket got = bisect(source, magnitudes, k, bisections);
        ASSERT_TRUE(same(expected.high, got.high) && same(expected.low, got.low))
            << "shape " << static_cast<int>(shape) << ", k " << k << ", " << bisections
            << " bisections: " << got.high << " and " << got.low;
        ASSERT_EQ(expected.above, got.above);
        ASSERT_EQ(expected.reached, got.reached);
      }
    }
  }
}

TEST_P(MstopkTest, TheMeanIsTheSameOnEveryLevel) {
  for (const std::size_t count : {1, 7, 8, 9, 2047, 2049, 10001}) {
    const std::vector<float> elements = elements_of(Shape::kStudent, count, 5);
    const Source plain(kBaselineLevel, elements.data(), nullptr, count, 1.0F);
    const Magnitudes expected = measure_magnitudes(plain);
    const Magnitudes got = measure_magnitudes(source_of(elements));
    EXPECT_TRUE(same(expected.mean, got.mean)) << count;
    double sum = 0.0;
    for (const float element : elements) {
      sum += std::fabs(static_cast<double>(element));
    }
    EXPECT_NEAR(sum / static_cast<double>(count), got.mean, 1e-12 * got.mean) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, MstopkTest, every_level(), NameOfCase());

TEST(SelectorReference, IsTheAlgorithm) {
  for (const Shape shape : all_shapes()) {
    SelectInput input = {elements_of(shape, 7001, 3), {}, 1.0F, 17};
    for (const std::size_t k : {1, 70, 2000, 7001}) {
      const Source source(kBaselineLevel, input.in.data(), nullptr, input.in.size(), 1.0F);
      const Bracket bracket = bisect(source, measure_magnitudes(source), k);
      std::vector<std::uint32_t> sure;
      std::vector<std::uint32_t> between;
      for (std::uint32_t i = 0; i < input.in.size(); ++i) {
        const float magnitude = std::fabs(input.in[i]);
        if (magnitude >= bracket.high) {
          sure.push_back(i);
        } else if (magnitude >= bracket.low) {
          between.push_back(i);
        }
      }
      const Selected got = select(input, k, SelectMode::kReference);
      ASSERT_EQ(bracket.low, got.told.threshold);
      // What was chosen beside the sure ones is a run of those between.
      std::vector<std::uint32_t> run;
      std::set_difference(got.indices.begin(),
                          got.indices.end(),
                          sure.begin(),
                          sure.end(),
                          std::back_inserter(run));
      ASSERT_EQ(k, sure.size() + run.size()) << "shape " << static_cast<int>(shape);
      const auto at = std::search(between.begin(), between.end(), run.begin(), run.end());
      ASSERT_TRUE(run.empty() || at != between.end()) << "no run";
    }
  }
}

constexpr std::size_t kK = 10000;

TEST(ThresholdTrack, BeginsTheSpreadBelowThePredictionWhateverACheckpointSays) {
  EXPECT_FLOAT_EQ(1.9F, candidate_threshold({2.0F, 0.05F}));
  EXPECT_EQ(0.0F, candidate_threshold(ThresholdTrack{})) << "before the first step";
  for (const float predicted : {-1.0F, 0.0F, static_cast<float>(NAN)}) {
    EXPECT_EQ(0.0F, candidate_threshold({predicted, 0.05F})) << predicted;
  }
  for (const float spread : {-3.0F, 0.0F, 7.0F, static_cast<float>(NAN)}) {
    const float low = candidate_threshold({1.0F, spread});
    EXPECT_GE(low, 0.5F) << spread;
    EXPECT_LT(low, 1.0F) << spread;
  }
}

/// Candidates that grow by a power of the width, flat or steep as under error feedback.
TEST(ThresholdTrack, SpreadSettlesForEveryDensityBelowTheThreshold) {
  for (const double steepness : {3.0, 30.0, 300.0}) {
    for (const float spread : {0.001F, 0.05F, 0.5F}) {
      ThresholdTrack track = {1.0F, spread};
      double candidates = 0.0;
      for (int step = 0; step < 40; ++step) {
        candidates = kK * std::pow(1.0 - static_cast<double>(track.spread), -steepness);
        track = after_step(track, Scan::kHit, 1.0F, kK, static_cast<std::size_t>(candidates));
      }
      EXPECT_NEAR(1.5, candidates / kK, 0.1) << steepness << " from " << spread;
    }
  }
}

TEST(ThresholdTrack, SpreadStaysInItsBounds) {
  ThresholdTrack track;
  for (int step = 0; step < 100; ++step) {
    track = after_step(track, Scan::kTooFew, 1.0F, kK, 0);
  }
  EXPECT_EQ(0.5F, track.spread);
  for (int step = 0; step < 100; ++step) {
    track = after_step(track, Scan::kTooMany, 1.0F, kK, 9 * kK);
  }
  EXPECT_EQ(1.0F / 1024, track.spread);
}

TEST(CandidateRoom, IsMoreThanTheTrackAimsAtAndNotMoreThanThereIs) {
  EXPECT_EQ(100U, candidate_room(100, 1));
  EXPECT_EQ(100U, candidate_room(100, 100));
  EXPECT_EQ(0U, candidate_room(0, 0));
  EXPECT_GT(candidate_room(1000000, 10000), 10000U + 10000U / 2 + 256);
  EXPECT_LT(candidate_room(1000000, 10000), 40000U);
}

}  // namespace
}  // namespace aiacc
