#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/dtype.h"

namespace aiacc {

/// The kernels of reduce.h, scale.h, narrow.h and check_finite.h, compiled for one instruction set.
/// All levels give the same bits, so ranks on different processors agree (save which payload
/// survives when two NaN meet).
struct VectorLevel {
  const char* name;
  void (*reduce_into)(
      void* out, const void* a, const void* b, std::size_t count, DataType dtype, ReduceOp op);
  void (*scale)(void* out, const void* in, std::size_t count, DataType dtype, double factor);
  void (*narrow)(void* out, const void* in, std::size_t count, DataType to, double factor);
  void (*widen)(void* out, const void* in, std::size_t count, DataType from, double factor);
  /// Bits without sign of the largest of `count` floats, where NaN counts as larger than infinity.
  std::uint64_t (*largest_magnitude)(const void* in, std::size_t count, DataType dtype);
};

/// Those that this processor and operating system can run, the widest first. Never empty.
const std::vector<const VectorLevel*>& runnable_vector_levels();

// Function pointers instead of ifunc or target_clones: those break under sanitizers.
extern const VectorLevel kBaselineLevel;
extern const VectorLevel kAvx2Level;    ///< compiled on x86-64 only
extern const VectorLevel kAvx512Level;  ///< compiled on x86-64 only

}  // namespace aiacc
