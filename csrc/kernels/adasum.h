#pragma once

#include <cstddef>

#include "csrc/base/dtype.h"

namespace aiacc {

/// Inner products of two vectors. Those of parts of the vectors add up.
struct PairProducts {
  double ab = 0;
  double aa = 0;
  double bb = 0;
};

/// In double. `dtype` is a float type, else throws Error(kInvalidArgument); any alignment.
PairProducts pair_products(const void* a, const void* b, std::size_t count, DataType dtype);

/// out[i] = (1 - ab / 2aa) a[i] + (1 - ab / 2bb) b[i]: the adaptive sum of two gradients (Maleki et
/// al., Scaling Distributed Training with Adaptive Summation, MLSys 2021), which adds them where
/// they are orthogonal and averages them where they are parallel. The products are those of the
/// whole vectors, of which this may be a part; a vector of length zero counts as nothing. `out` may
/// be `a` or `b`, else no overlap. Types as in pair_products.
void combine_adasum(void* out,
                    const void* a,
                    const void* b,
                    std::size_t count,
                    DataType dtype,
                    const PairProducts& products);

}  // namespace aiacc
