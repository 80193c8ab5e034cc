#include "csrc/kernels/reduce.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/scale.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

// What was reduced is still in the first-level cache when it is scaled.
constexpr std::size_t kScaledBytes = std::size_t{8} * 1024;

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
  const auto& [dtype, op, factor] = reduction;
  if (factor == 1.0) {
    reduce_into(out, a, b, count, dtype, op);
    return;
  }
  const std::size_t element = size_of(dtype);
  const std::size_t step = kScaledBytes / element;
  for (std::size_t from = 0; from < count; from += step) {
    const std::size_t part = std::min(step, count - from);
    const std::size_t offset = from * element;
    std::byte* target = static_cast<std::byte*>(out) + offset;
    reduce_into(target,
                static_cast<const std::byte*>(a) + offset,
                static_cast<const std::byte*>(b) + offset,
                part,
                dtype,
                op);
    scale(target, target, part, dtype, factor);
  }
}

}  // namespace aiacc
