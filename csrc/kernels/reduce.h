#pragma once

#include <cstddef>

#include "csrc/base/dtype.h"

namespace aiacc {

/// acc[i] = acc[i] op in[i]. No overlap. 16-bit floats are combined in fp32 and rounded to nearest
/// even; bool: Sum and Max are "or", Product and Min are "and"; NaN wins in Min and Max.
/// `op` is kSum, kMin, kMax or kProduct. Any alignment; uses the widest vectors of this CPU.
void reduce(void* acc, const void* in, std::size_t count, DataType dtype, ReduceOp op);

/// out[i] = a[i] op b[i]; `out` may equal `a` or `b`, else no overlap.
void reduce_into(
    void* out, const void* a, const void* b, std::size_t count, DataType dtype, ReduceOp op);

/// As reduce_into and then scale of the result, in one pass over memory.
void reduce_scaled(
    void* out, const void* a, const void* b, std::size_t count, const Reduction& reduction);

/// The same with the result in `copy`, too, which overlaps nothing else: again in one pass.
void reduce_scaled_to_both(void* out,
                           void* copy,
                           const void* a,
                           const void* b,
                           std::size_t count,
                           const Reduction& reduction);

}  // namespace aiacc
