#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/selection/bisection.h"
#include "csrc/kernels/selection/source.h"

namespace aiacc {

/// Mean and maximum of the magnitudes, between which MSTopK looks for its thresholds.
struct Magnitudes {
  double mean = 0.0;
  float largest = 0.0F;
  bool finite = true;
};

/// The mean is the same on every vector level, and on GPUs: of every 2048 magnitudes eight sums in
/// double, added in order; 1024 such sums in order; all of those in order.
Magnitudes measure_magnitudes(const Source& source);

/// The bracket of `bisections` halvings of [mean, largest] around k, at most 52. Each pass over the
/// source counts against 2^levels - 1 thresholds and so replaces `levels` halvings, 1 to 6, with
/// the same result to the bit: bisection visits only dyadic positions, and these are they. Where
/// more than k elements exceed every threshold, `high` is infinite; where fewer than k reach the
/// mean, `low` is 0.
Bracket bisect(const Source& source,
               const Magnitudes& magnitudes,
               std::size_t k,
               int bisections = kBisections,
               int levels = 5);

}  // namespace aiacc
