#pragma once

// The arithmetic of MSTopK's bisection, for the host and for the device.

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/host_device.h"

namespace aiacc {

/// Numbers of MSTopK: "Towards Scalable Distributed Training of Deep Learning on Public Cloud
/// Clusters", MLSys 2021, arXiv:2010.10458.
constexpr int kBisections = 30;

/// Where bisection has come to: positions between mean and maximum, and the bracket so far.
struct Bisection {
  double left;
  double right;
  float high;
  float low;
  std::uint64_t above;
  std::uint64_t reached;
};

/// Position `i` of `parts` between two others: exact, since all are dyadic.
AIACC_HOST_DEVICE inline double position_of(double left,
                                            double right,
                                            std::size_t i,
                                            std::size_t parts) {
  return left + (right - left) * (static_cast<double>(i) / static_cast<double>(parts));
}

/// All orders of visit must round alike, so this is the only place that makes a threshold.
AIACC_HOST_DEVICE inline float threshold_at(double position, double mean, float largest) {
  const double width = static_cast<double>(largest) - mean;
#ifdef __CUDA_ARCH__
  return static_cast<float>(__dadd_rn(mean, __dmul_rn(position, width)));
#else
  return static_cast<float>(mean + position * width);
#endif
}

/// The halvings between `parts` positions, of which only the counts were missing: counts[i]
/// elements reach thresholds[i], 0 < i < parts.
template <class Count>
AIACC_HOST_DEVICE void halve(Bisection& bisection,
                             std::size_t parts,
                             std::uint64_t k,
                             const Count* counts,
                             const float* thresholds) {
  std::size_t left = 0;
  std::size_t right = parts;
  while (right - left > 1) {
    const std::size_t middle = (left + right) / 2;
    const std::uint64_t count = counts[middle];
    if (count <= k) {
      right = middle;
      if (count > bisection.above) {
        bisection.above = count;
        bisection.high = thresholds[middle];
      }
    } else {
      left = middle;
      if (count < bisection.reached) {
        bisection.reached = count;
        bisection.low = thresholds[middle];
      }
    }
  }
  const double width = (bisection.right - bisection.left) / static_cast<double>(parts);
  bisection.right = bisection.left + static_cast<double>(right) * width;
  bisection.left += static_cast<double>(left) * width;
}

}  // namespace aiacc
