#pragma once

#include <cstddef>

namespace aiacc {

/// Of aiacc.optim.LARS, whose docstrings say what they mean.
struct LarsOptions {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  double trust_coefficient = 0;
  double eps = 0;
  double least_ratio = 0;
  double largest_ratio = 0;
  bool nesterov = false;
  bool larc = false;
  bool adapt = true;   ///< else the ratio is 1
  bool first = false;  ///< the momentum is what enters it now, whatever it holds
};

/// One step of LARS on a tensor in host memory: norms, then the update, which reads and writes each
/// element once. Sums of squares are in double, everything else of an element in float. `momentum`
/// may be null where options.momentum is 0; the three do not overlap. Any thread; does not block.
void lars_step(float* weights,
               const float* gradient,
               float* momentum,
               std::size_t count,
               const LarsOptions& options);

}  // namespace aiacc
