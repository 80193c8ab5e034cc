#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/kernels/quantise.h"

namespace aiacc {

/// The kernels of reduce.h, scale.h, narrow.h, check_finite.h and quantise.h, compiled for one
/// instruction set.
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
  void (*encode_blocks)(void* wire,
                        const void* in,
                        void* residual,
                        std::size_t count,
                        const BlockCode& code,
                        float factor,
                        const Rounding& rounding,
                        std::uint64_t first_index);
  void (*decode_blocks)(
      void* out, const void* wire, std::size_t count, const BlockCode& code, float factor);
  void (*decode_add_blocks)(void* out, const void* wire, std::size_t count, const BlockCode& code);
};

/// Those that this processor and operating system can run, the widest first. Never empty.
const std::vector<const VectorLevel*>& runnable_vector_levels();

// Function pointers instead of ifunc or target_clones: those break under sanitizers.
extern const VectorLevel kBaselineLevel;
extern const VectorLevel kAvx2Level;    ///< compiled on x86-64 only
extern const VectorLevel kAvx512Level;  ///< compiled on x86-64 only

}  // namespace aiacc
