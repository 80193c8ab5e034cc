#pragma once

#include <cstddef>
#include <vector>

namespace aiacc {

/// The options of aiacc.optim.LARS, whose docstrings say what they mean.
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

/// As the arguments of lars_step.
struct LarsTensor {
  float* weights;
  const float* gradient;
  float* momentum;
  std::size_t count;
};

/// lars_step of all tensors, which do not overlap, by this thread and up to `threads` - 1 others
/// that end with it: fewer where there is little to do, or no room for a thread. Each tensor is one
/// thread's, so that the number of threads changes no bit. Blocks until all are done.
void lars_steps(const std::vector<LarsTensor>& tensors,
                const LarsOptions& options,
                unsigned threads);

}  // namespace aiacc
