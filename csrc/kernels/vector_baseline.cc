#include "csrc/kernels/vector_kernels.h"
#include "csrc/kernels/vector_level.h"

namespace aiacc {

using BaselineKernels = Kernels<PlainHalfBlocks>;

const VectorLevel kBaselineLevel = {"baseline",
                                    &BaselineKernels::reduce_into,
                                    &BaselineKernels::scale,
                                    &BaselineKernels::largest_magnitude};

}  // namespace aiacc
