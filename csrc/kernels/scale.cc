#include "csrc/kernels/scale.h"

#include "csrc/kernels/vector_level.h"

namespace aiacc {

void scale(void* out, const void* in, std::size_t count, DataType dtype, double factor) {
  static const VectorLevel& level = *runnable_vector_levels().front();
  level.scale(out, in, count, dtype, factor);
}

}  // namespace aiacc
