#include "csrc/kernels/narrow.h"

#include "csrc/base/error.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

const VectorLevel& level_for(DataType narrowed) {
  AIACC_CHECK(narrowed == DataType::kFloat16 || narrowed == DataType::kBFloat16);
  static const VectorLevel& level = *runnable_vector_levels().front();
  return level;
}

}  // namespace

void narrow(void* out, const void* in, std::size_t count, DataType to, double factor) {
  level_for(to).narrow(out, in, count, to, factor);
}

void widen(void* out, const void* in, std::size_t count, DataType from, double factor) {
  level_for(from).widen(out, in, count, from, factor);
}

}  // namespace aiacc
