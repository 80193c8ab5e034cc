#include "csrc/kernels/selection/threshold_track.h"

#include <cmath>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

constexpr std::size_t kK = 10000;

ThresholdTrack track_of(float predicted, float spread) {
  ThresholdTrack track;
  track.predicted = predicted;
  track.spread = spread;
  return track;
}

TEST(ThresholdTrack, CandidatesBeginTheSpreadBelowThePrediction) {
  EXPECT_FLOAT_EQ(1.9F, candidate_threshold(track_of(2.0F, 0.05F)));
  EXPECT_EQ(0.0F, candidate_threshold(ThresholdTrack{})) << "before the first step";
}

TEST(ThresholdTrack, AnyNumbersOfACheckpointAreSafe) {
  for (const float predicted : {-1.0F, 0.0F, static_cast<float>(NAN)}) {
    EXPECT_EQ(0.0F, candidate_threshold(track_of(predicted, 0.05F))) << predicted;
  }
  for (const float spread : {-3.0F, 0.0F, 7.0F, static_cast<float>(NAN)}) {
    const float low = candidate_threshold(track_of(1.0F, spread));
    EXPECT_GE(low, 0.5F) << spread;
    EXPECT_LT(low, 1.0F) << spread;
  }
}

TEST(ThresholdTrack, PredictsTheLastThreshold) {
  for (const Scan scan : {Scan::kNone, Scan::kHit, Scan::kTooFew, Scan::kTooMany}) {
    EXPECT_EQ(3.0F, after_step(track_of(1.0F, 0.05F), scan, 3.0F, kK, kK).predicted);
  }
}

TEST(ThresholdTrack, CountsWhatBecameOfPredictions) {
  ThresholdTrack track;
  track = after_step(track, Scan::kNone, 1.0F, kK, 0);
  EXPECT_EQ(0U, track.hits + track.fallbacks);
  track = after_step(track, Scan::kHit, 1.0F, kK, kK);
  track = after_step(track, Scan::kTooFew, 1.0F, kK, kK - 1);
  track = after_step(track, Scan::kTooMany, 1.0F, kK, 9 * kK);
  EXPECT_EQ(1U, track.hits);
  EXPECT_EQ(2U, track.fallbacks);
}

TEST(ThresholdTrack, SpreadFollowsTheNumberOfCandidates) {
  const ThresholdTrack track = track_of(1.0F, 0.05F);
  EXPECT_GT(after_step(track, Scan::kHit, 1.0F, kK, kK).spread, track.spread);
  EXPECT_GT(after_step(track, Scan::kHit, 1.0F, kK, kK + kK / 4).spread, track.spread);
  EXPECT_LT(after_step(track, Scan::kHit, 1.0F, kK, 3 * kK).spread, track.spread);
  EXPECT_FLOAT_EQ(track.spread, after_step(track, Scan::kHit, 1.0F, kK, kK + kK / 2 + 256).spread);
  EXPECT_GT(after_step(track, Scan::kTooFew, 1.0F, kK, 5).spread, track.spread);
  EXPECT_LT(after_step(track, Scan::kTooMany, 1.0F, kK, 9 * kK).spread, track.spread);
}

/// Candidates that grow by a power of the width, flat or steep as under error feedback.
TEST(ThresholdTrack, SpreadSettlesForEveryDensityBelowTheThreshold) {
  for (const double steepness : {3.0, 30.0, 300.0}) {
    for (const float spread : {0.001F, 0.05F, 0.5F}) {
      ThresholdTrack track = track_of(1.0F, spread);
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
