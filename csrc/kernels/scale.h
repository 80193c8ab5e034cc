#pragma once

#include <cstddef>

#include "csrc/base/dtype.h"

namespace aiacc {

/// out[i] = factor * in[i]; `out` may equal `in`. Floats: fp64 in double, the others in fp32. They
/// are divided by n where the factor is 1.0 / n, so that an average is the nearest number.
/// Integers and bool: divided by n where the factor is 1.0 / n, else multiplied in double;
/// truncated toward zero (Horovod's rule).
void scale(void* out, const void* in, std::size_t count, DataType dtype, double factor);

/// As scale, but a factor of 1 copies, and costs nothing when `out` is `in`.
void copy_scaled(void* out, const void* in, std::size_t count, DataType dtype, double factor);

}  // namespace aiacc
