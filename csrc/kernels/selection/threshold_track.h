#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "csrc/kernels/host_device.h"

namespace aiacc {

/// What is kept from step to step of one buffer: the threshold of the last step predicts the next
/// one. Numbers only: a checkpoint may hold them, and any values are safe to go on with.
struct ThresholdTrack {
  float predicted = 0.0F;  ///< no prediction unless it is positive
  float spread = 0.05F;    ///< candidates are what is at least predicted * (1 - spread)
  std::uint64_t hits = 0;
  std::uint64_t fallbacks = 0;  ///< predictions that failed; a step without one is not counted
};

/// How the scan for candidates ended.
enum class Scan {
  kNone,     ///< there was no prediction
  kHit,      ///< the k largest are among the candidates
  kTooFew,   ///< less than k
  kTooMany,  ///< more than there is room for, because many are equal
};

/// Room for candidates, more than the track aims at.
std::size_t candidate_room(std::size_t count, std::size_t k);

/// How far below the prediction candidates begin, whatever number that is, NaN too.
AIACC_HOST_DEVICE inline float clamped_spread(float spread) {
  constexpr float kNarrowest = 1.0F / 1024;
  constexpr float kWidest = 0.5F;
  return spread >= kNarrowest ? (spread < kWidest ? spread : kWidest) : kNarrowest;
}

/// The magnitude from which on elements are candidates, 0 if there is no prediction.
AIACC_HOST_DEVICE inline float candidate_threshold(const ThresholdTrack& track) {
  return track.predicted > 0.0F ? track.predicted * (1.0F - clamped_spread(track.spread)) : 0.0F;
}

/// The track after a step whose k-th largest magnitude was `threshold` and in which `candidates`
/// elements reached the candidate threshold. Error feedback piles up
/// values just below it, so no fixed spread is right: it follows the number of candidates, half as
/// many again as k. Pure.
AIACC_HOST_DEVICE inline ThresholdTrack after_step(
    ThresholdTrack track, Scan scan, float threshold, std::size_t k, std::size_t candidates) {
  track.predicted = threshold;
  switch (scan) {
    case Scan::kNone:
      return track;
    case Scan::kHit: {
      // Candidates beyond k that make a step like the last one safe. Few elements vary more.
      const std::size_t wanted = k / 2 + 256;
      const std::size_t surplus = candidates == k ? 1 : candidates - k;  // a hit has k or more
      // The square root, since the threshold moves, too: one step is no measure of the next.
      const float ratio = std::sqrt(static_cast<float>(wanted) / static_cast<float>(surplus));
      const float bounded = ratio < 0.7F ? 0.7F : ratio > 1.4F ? 1.4F : ratio;
      track.spread = clamped_spread(track.spread * bounded);
      ++track.hits;
      return track;
    }
    case Scan::kTooFew:
      track.spread = clamped_spread(track.spread * 1.5F);
      break;
    case Scan::kTooMany:
      track.spread = clamped_spread(track.spread * 0.5F);
      break;
  }
  ++track.fallbacks;
  return track;
}

}  // namespace aiacc
