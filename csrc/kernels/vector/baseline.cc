#include "csrc/kernels/vector/kernels.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {

using BaselineKernels = Kernels<PlainHalfBlocks>;

const VectorLevel kBaselineLevel = {"baseline",
                                    &BaselineKernels::reduce_into,
                                    &BaselineKernels::scale,
                                    &BaselineKernels::narrow,
                                    &BaselineKernels::widen,
                                    &BaselineKernels::largest_magnitude};

}  // namespace aiacc
