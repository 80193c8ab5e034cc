#pragma once

// LARS in double, by its equations: what kernels are compared with.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "csrc/kernels/lars.h"

namespace aiacc {

inline double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum);
}

/// A step of parameters `w` with gradients `g` and momentum `v`.
inline void lars_reference(std::vector<double>& w,
                           const std::vector<double>& g,
                           std::vector<double>& v,
                           const LarsOptions& o) {
  double ratio = 1;
  if (o.adapt) {
    if (norm(w) > 0 && norm(g) > 0) {
      ratio = o.trust_coefficient * norm(w) / (norm(g) + o.weight_decay * norm(w) + o.eps);
    }
    ratio = std::min(std::max(ratio, o.least_ratio), o.largest_ratio);
    ratio = o.larc ? std::min(ratio / o.lr, 1.0) : ratio;
  }
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double change = ratio * (g[i] + o.weight_decay * w[i]);
    if (o.momentum == 0) {
      w[i] -= o.lr * change;
      continue;
    }
    v[i] = o.first ? change : o.momentum * v[i] + (1 - o.dampening) * change;
    w[i] -= o.lr * (o.nesterov ? change + o.momentum * v[i] : v[i]);
  }
}

}  // namespace aiacc
