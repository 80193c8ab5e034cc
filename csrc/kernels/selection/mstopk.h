#pragma once

// MSTopK as published: "Towards Scalable Distributed Training of Deep Learning on Public Cloud
// Clusters", MLSys 2021, arXiv:2010.10458, algorithm 1. What select.h does by default is faster and
// exact; this is what it is compared with.

#include <cstddef>

#include "csrc/kernels/selection/source.h"

namespace aiacc {

/// Halvings of the published algorithm.
inline constexpr int kBisections = 30;

/// Mean and maximum of the magnitudes, between which MSTopK looks for its thresholds.
struct Magnitudes {
  double mean = 0.0;
  float largest = 0.0F;
  bool finite = true;
};

/// The mean is the same on every vector level: of every Source::kBlock magnitudes eight sums in
/// double, added in order; all of those in order.
Magnitudes measure_magnitudes(const Source& source);

/// The bracket of `bisections` halvings of [mean, largest] around k, at most 52. Where more than k
/// elements exceed every threshold, `high` is infinite; where fewer than k reach the mean, `low` is
/// 0.
Bracket bisect(const Source& source,
               const Magnitudes& magnitudes,
               std::size_t k,
               int bisections = kBisections);

}  // namespace aiacc
