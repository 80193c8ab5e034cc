#include "csrc/kernels/lars.h"

#include <algorithm>
#include <cmath>

#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

double norm(const double* sums) {
  double sum = 0;
  for (int lane = 0; lane < 8; ++lane) {
    sum += sums[lane];
  }
  return std::sqrt(sum);
}

double trust_ratio(const VectorLevel& level,
                   const float* weights,
                   const float* gradient,
                   std::size_t count,
                   const LarsOptions& options) {
  double squares[2][8] = {};
  level.add_squares(squares[0], squares[1], weights, gradient, count);
  const double of_weights = norm(squares[0]);
  const double of_gradient = norm(squares[1]);
  double ratio = 1;
  if (of_weights > 0 && of_gradient > 0) {
    ratio = options.trust_coefficient * of_weights /
            (of_gradient + of_weights * options.weight_decay + options.eps);
  }
  ratio = std::min(std::max(ratio, options.least_ratio), options.largest_ratio);
  return options.larc ? std::min(ratio / options.lr, 1.0) : ratio;
}

}  // namespace

void lars_step(float* weights,
               const float* gradient,
               float* momentum,
               std::size_t count,
               const LarsOptions& options) {
  static const VectorLevel& level = *runnable_vector_levels().front();
  const double ratio = options.adapt ? trust_ratio(level, weights, gradient, count, options) : 1.0;
  const double enters = options.first ? 1 : 1 - options.dampening;
  MomentumFactors factors;
  factors.gradient = static_cast<float>(ratio);
  factors.weight = static_cast<float>(ratio * options.weight_decay);
  factors.kept = static_cast<float>(options.first ? 0 : options.momentum);
  factors.enters = static_cast<float>(enters);
  const bool by_change = momentum == nullptr || options.nesterov;
  factors.step_by_change = static_cast<float>(by_change ? options.lr : 0);
  factors.step_by_momentum =
      static_cast<float>(options.nesterov ? options.lr * options.momentum : options.lr);
  level.momentum_update(weights, gradient, momentum, count, factors);
}

}  // namespace aiacc
