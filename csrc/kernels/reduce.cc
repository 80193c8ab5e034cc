#include "csrc/kernels/reduce.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/scale.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

// What was reduced is still in the first-level cache when it is scaled, or copied.
constexpr std::size_t kStepBytes = std::size_t{8} * 1024;

/// Calls `part(offset, count)`, in bytes and elements, for one piece after the other.
template <class Part>
void in_steps(std::size_t count, std::size_t element, Part part) {
  const std::size_t step = kStepBytes / element;
  for (std::size_t from = 0; from < count; from += step) {
    part(from * element, std::min(step, count - from));
  }
}

const std::byte* after(const void* start, std::size_t offset) {
  return static_cast<const std::byte*>(start) + offset;
}
std::byte* after(void* start, std::size_t offset) {
  return static_cast<std::byte*>(start) + offset;
}

}  // namespace

void reduce(void* acc, const void* in, std::size_t count, DataType dtype, ReduceOp op) {
  reduce_into(acc, acc, in, count, dtype, op);
}

void reduce_into(
    void* out, const void* a, const void* b, std::size_t count, DataType dtype, ReduceOp op) {
  if (op == ReduceOp::kAverage || op == ReduceOp::kAdasum) {
    throw Error(Code::kInternal,
                std::string("[kernels] cannot reduce with ") + name_of(op) +
                    " (expected Sum, Min, Max or Product)");
  }
  static const VectorLevel& level = *runnable_vector_levels().front();
  level.reduce_into(out, a, b, count, dtype, op);
}

void reduce_scaled(
    void* out, const void* a, const void* b, std::size_t count, const Reduction& reduction) {
  const DataType dtype = reduction.dtype;
  if (reduction.factor == 1.0) {
    reduce_into(out, a, b, count, dtype, reduction.op);
    return;
  }
  in_steps(count, size_of(dtype), [&](std::size_t offset, std::size_t part) {
    std::byte* target = after(out, offset);
    reduce_into(target, after(a, offset), after(b, offset), part, dtype, reduction.op);
    scale(target, target, part, dtype, reduction.factor);
  });
}

void reduce_scaled_to_both(void* out,
                           void* copy,
                           const void* a,
                           const void* b,
                           std::size_t count,
                           const Reduction& reduction) {
  const std::size_t element = size_of(reduction.dtype);
  in_steps(count, element, [&](std::size_t offset, std::size_t part) {
    std::byte* target = after(out, offset);
    reduce_scaled(target, after(a, offset), after(b, offset), part, reduction);
    std::memcpy(after(copy, offset), target, part * element);
  });
}

}  // namespace aiacc
