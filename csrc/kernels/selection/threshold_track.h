#pragma once

#include <cstddef>
#include <cstdint>

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

/// The magnitude from which on elements are candidates, 0 if there is no prediction.
float candidate_threshold(const ThresholdTrack& track);

/// The track after a step whose k-th largest magnitude was `threshold` and in which `candidates`
/// elements reached the candidate threshold. Error feedback piles up
/// values just below it, so no fixed spread is right: it follows the number of candidates, half as
/// many again as k. Pure.
ThresholdTrack after_step(
    ThresholdTrack track, Scan scan, float threshold, std::size_t k, std::size_t candidates);

}  // namespace aiacc
