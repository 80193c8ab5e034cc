#pragma once

#include <cstddef>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/engines/engine.h"

namespace aiacc {

/// Adaptive summation (csrc/kernels/adasum.h) of the tensors of all ranks of `engine`.
///
/// The ranks are combined in pairs: r with r ^ 1, the results of these with r ^ 2, and so on, each
/// tensor with weights of its own. Recursive vector halving with distance doubling: every step
/// halves what a rank works on, and the results are gathered the same way back. So every element is
/// computed on one rank, and all ranks get the same bits.
///
/// `send` and `recv` hold tensors of `counts` elements one after another; `send` may equal `recv`,
/// else no overlap. Collective on `lane`, blocks, fails as operations of the engine do; besides,
/// throws Error(kInvalidArgument) if `size` is not a power of two or `dtype` not a float.
void adasum(Engine& engine,
            int lane,
            const void* send,
            void* recv,
            const std::vector<std::size_t>& counts,
            DataType dtype,
            int rank,
            int size);

}  // namespace aiacc
