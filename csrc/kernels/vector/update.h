#pragma once

// The kernels of lars.h; see kernels.h for how such files are compiled.

#include <cstddef>

#include "csrc/kernels/vector/kernels.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

struct UpdateKernels {
  /// Eight sums of each on every level, so that all round alike.
  static void add_squares(
      double* a_sums, double* b_sums, const float* a, const float* b, std::size_t count) {
    const auto* x = static_cast<const Float*>(a);
    const auto* y = static_cast<const Float*>(b);
    double of_x[8];
    double of_y[8];
    for (int lane = 0; lane < 8; ++lane) {
      of_x[lane] = a_sums[lane];
      of_y[lane] = b_sums[lane];
    }
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane) {
        const auto left = static_cast<double>(x[i + lane]);
        const auto right = static_cast<double>(y[i + lane]);
        of_x[lane] += left * left;
        of_y[lane] += right * right;
      }
    }
    for (std::size_t lane = 0; i + lane < count; ++lane) {
      const auto left = static_cast<double>(x[i + lane]);
      const auto right = static_cast<double>(y[i + lane]);
      of_x[lane] += left * left;
      of_y[lane] += right * right;
    }
    for (int lane = 0; lane < 8; ++lane) {
      a_sums[lane] = of_x[lane];
      b_sums[lane] = of_y[lane];
    }
  }

  static void momentum_update(float* weights,
                              const float* gradient,
                              float* momentum,
                              std::size_t count,
                              const MomentumFactors& factors) {
    auto* w = static_cast<Float*>(weights);
    const auto* g = static_cast<const Float*>(gradient);
    auto* m = static_cast<Float*>(momentum);
    const MomentumFactors f = factors;  // which no store can change
    if (m == nullptr) {
#pragma GCC ivdep
      for (std::size_t i = 0; i < count; ++i) {
        w[i] -= f.step_by_change * (f.gradient * g[i] + f.weight * w[i]);
      }
    } else if (f.kept == 0) {  // whatever it holds, NaN too
#pragma GCC ivdep
      for (std::size_t i = 0; i < count; ++i) {
        const float change = f.gradient * g[i] + f.weight * w[i];
        const float kept = f.enters * change;
        m[i] = kept;
        w[i] -= f.step_by_change * change + f.step_by_momentum * kept;
      }
    } else {
#pragma GCC ivdep
      for (std::size_t i = 0; i < count; ++i) {
        const float change = f.gradient * g[i] + f.weight * w[i];
        const float kept = f.kept * m[i] + f.enters * change;
        m[i] = kept;
        w[i] -= f.step_by_change * change + f.step_by_momentum * kept;
      }
    }
  }
};

}  // namespace
}  // namespace aiacc
