#include "csrc/kernels/reduce.h"

#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/vector_level.h"

namespace aiacc {

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

}  // namespace aiacc
