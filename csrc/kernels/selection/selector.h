#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/select.h"
#include "csrc/kernels/selection/candidates.h"
#include "csrc/kernels/selection/source.h"

namespace aiacc {

/// One selection by the contract of select.h: finds a bracket, then takes k elements by it. Call
/// one of the public functions, once.
class Selector {
 public:
  /// `residual` is that of the source. `scratch` is made large enough.
  Selector(const Source& source,
           void* wire,
           float* residual,
           std::size_t k,
           std::uint64_t seed,
           SelectScratch& scratch);

  Selection tracked(ThresholdTrack& track);
  Selection exact();
  Selection reference();
  /// Where k is 0: the residual takes everything.
  Selection nothing();

 private:
  /// Starts to take by a bracket: draws which run of the elements between its thresholds it is.
  void start(const Bracket& bracket);
  /// Takes the element if it is one of the k. Elements come in the order of their indices.
  void offer(float value, std::uint32_t index);
  void write_pair(float value, std::uint32_t index);

  /// Takes from the candidates and writes the residual. Returns the least magnitude that was taken.
  float take_of_candidates();
  /// The same from all elements, where the candidates may be too many.
  void take_of_all(const Bracket& bracket);
  /// The first element that is not finite, among zeros of the lowest other indices.
  Selection not_finite();

  const Source& source_;
  unsigned char* wire_;
  float* residual_;
  std::size_t k_;
  std::uint64_t seed_;
  SelectScratch& scratch_;
  Candidates candidates_;
  std::size_t written_ = 0;
  std::uint32_t high_ = 0;
  std::uint32_t low_ = 0;
  std::size_t before_run_ = 0;   ///< elements between the thresholds that are left to skip
  std::size_t left_in_run_ = 0;  ///< and after them to take
};

}  // namespace aiacc
