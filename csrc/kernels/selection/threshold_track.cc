#include "csrc/kernels/selection/threshold_track.h"

#include <algorithm>
#include <cmath>

namespace aiacc {
namespace {

constexpr float kNarrowest = 1.0F / 1024;
constexpr float kWidest = 0.5F;

float clamped(float spread) {
  return spread >= kNarrowest ? std::min(spread, kWidest) : kNarrowest;  // also of NaN
}

/// Candidates beyond k that make a step like the last one safe. Few elements vary more.
std::size_t wanted_surplus(std::size_t k) { return k / 2 + 256; }

}  // namespace

std::size_t candidate_room(std::size_t count, std::size_t k) {
  return std::min(count, 2 * k + count / 64 + 1024);
}

float candidate_threshold(const ThresholdTrack& track) {
  return track.predicted > 0.0F ? track.predicted * (1.0F - clamped(track.spread)) : 0.0F;
}

ThresholdTrack after_step(
    ThresholdTrack track, Scan scan, float threshold, std::size_t k, std::size_t candidates) {
  track.predicted = threshold;
  switch (scan) {
    case Scan::kNone:
      return track;
    case Scan::kHit: {
      // The square root, since the threshold moves, too: one step is no measure of the next.
      const auto surplus = static_cast<float>(std::max<std::size_t>(candidates - k, 1));
      const float ratio = std::sqrt(static_cast<float>(wanted_surplus(k)) / surplus);
      track.spread = clamped(track.spread * std::clamp(ratio, 0.7F, 1.4F));
      ++track.hits;
      return track;
    }
    case Scan::kTooFew:
      track.spread = clamped(track.spread * 1.5F);
      break;
    case Scan::kTooMany:
      track.spread = clamped(track.spread * 0.5F);
      break;
  }
  ++track.fallbacks;
  return track;
}

}  // namespace aiacc
