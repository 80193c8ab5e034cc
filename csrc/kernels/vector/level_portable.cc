#include "csrc/kernels/vector/level.h"

namespace aiacc {

const std::vector<const VectorLevel*>& runnable_vector_levels() {
  static const std::vector<const VectorLevel*> levels = {&kBaselineLevel};
  return levels;
}

}  // namespace aiacc
