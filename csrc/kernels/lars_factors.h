#pragma once

// The numbers of a step of LARS, for lars.cc and for the kernels on GPUs.

#include <cmath>

#include "csrc/kernels/host_device.h"
#include "csrc/kernels/lars.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {

/// The ratio of a tensor, by the sums of the squares of its weights and of its gradient.
AIACC_HOST_DEVICE inline double lars_ratio(double weight_squares,
                                           double gradient_squares,
                                           const LarsOptions& options) {
  const double weights = std::sqrt(weight_squares);
  const double gradient = std::sqrt(gradient_squares);
  double ratio = 1;
  if (weights > 0 && gradient > 0) {
    ratio = product(options.trust_coefficient, weights) /
            (gradient + product(weights, options.weight_decay) + options.eps);
  }
  ratio = ratio < options.least_ratio ? options.least_ratio : ratio;
  ratio = ratio > options.largest_ratio ? options.largest_ratio : ratio;
  if (options.larc) {
    ratio /= options.lr;
    ratio = ratio > 1 ? 1 : ratio;
  }
  return ratio;
}

AIACC_HOST_DEVICE inline MomentumFactors lars_factors(double ratio,
                                                      const LarsOptions& options,
                                                      bool has_momentum) {
  const bool by_change = !has_momentum || options.nesterov;
  MomentumFactors factors;
  factors.gradient = static_cast<float>(ratio);
  factors.weight = static_cast<float>(product(ratio, options.weight_decay));
  factors.kept = static_cast<float>(options.first ? 0 : options.momentum);
  factors.enters = static_cast<float>(options.first ? 1 : 1 - options.dampening);
  factors.step_by_change = static_cast<float>(by_change ? options.lr : 0);
  factors.step_by_momentum =
      static_cast<float>(options.nesterov ? product(options.lr, options.momentum) : options.lr);
  return factors;
}

}  // namespace aiacc
