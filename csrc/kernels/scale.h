#pragma once

#include <cstddef>

#include "csrc/base/dtype.h"

namespace aiacc {

/// out[i] = factor * in[i]; `out` may equal `in`. Floats: fp64 in double, the others in fp32.
/// Integers and bool: multiplied in double and truncated toward zero (Horovod's rule).
void scale(void* out, const void* in, std::size_t count, DataType dtype, double factor);

/// As scale, but a factor of 1 copies, and costs nothing when `out` is `in`.
void copy_scaled(void* out, const void* in, std::size_t count, DataType dtype, double factor);

}  // namespace aiacc
