#include "csrc/kernels/vector/kernels.h"
#include "csrc/kernels/vector/level.h"
#include "csrc/kernels/vector/quantise.h"
#include "csrc/kernels/vector/select_kernels.h"
#include "csrc/kernels/vector/update.h"

namespace aiacc {

using BaselineKernels = Kernels<PlainHalfBlocks>;

const VectorLevel kBaselineLevel = {"baseline",
                                    &BaselineKernels::reduce_into,
                                    &BaselineKernels::scale,
                                    &BaselineKernels::narrow,
                                    &BaselineKernels::widen,
                                    &BaselineKernels::largest_magnitude,
                                    &encode_any_blocks,
                                    &decode_any_blocks,
                                    &decode_add_any_blocks,
                                    &SelectKernels::accumulate,
                                    &PlainCollect::collect,
                                    &SelectKernels::count_reaching,
                                    &SelectKernels::add_magnitudes,
                                    &UpdateKernels::add_squares,
                                    &UpdateKernels::momentum_update};

}  // namespace aiacc
