#include "csrc/kernels/scale.h"

#include <cstring>

#include "csrc/kernels/vector/level.h"

namespace aiacc {

void scale(void* out, const void* in, std::size_t count, DataType dtype, double factor) {
  static const VectorLevel& level = *runnable_vector_levels().front();
  level.scale(out, in, count, dtype, factor);
}

void copy_scaled(void* out, const void* in, std::size_t count, DataType dtype, double factor) {
  if (factor != 1.0) {
    scale(out, in, count, dtype, factor);
  } else if (out != in && count > 0) {
    std::memcpy(out, in, count * size_of(dtype));
  }
}

}  // namespace aiacc
