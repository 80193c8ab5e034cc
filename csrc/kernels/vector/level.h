#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/kernels/quantise.h"

namespace aiacc {

/// What an element's update multiplies: change = gradient * g + weight * w, then
/// m = kept * m + enters * change, then w -= step_by_change * change + step_by_momentum * m.
struct MomentumFactors {
  float gradient;
  float weight;
  float kept;
  float enters;
  float step_by_change;
  float step_by_momentum;
};

/// The kernels of reduce.h, scale.h, narrow.h, check_finite.h, quantise.h, select.h and lars.h,
/// compiled for one instruction set. All levels give the same bits, so ranks on different
/// processors agree (save which payload survives when two NaN meet).
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
  /// out[i] = factor * in[i], plus residual[i] if there is one, which may be `out`. Returns the
  /// bits without sign of the largest.
  std::uint32_t (*accumulate)(
      float* out, const float* in, const float* residual, std::size_t count, float factor);
  /// Writes the elements whose bits without sign are at least `low`, and `first` plus their
  /// indices. Returns how many; what follows them, up to `count` and 16 more, may be overwritten.
  std::size_t (*collect)(float* values,
                         std::uint32_t* indices,
                         const float* in,
                         std::size_t count,
                         std::uint32_t low,
                         std::uint32_t first);
  /// counts[j] += how many have bits without sign of at least lows[j]. count < 2^31.
  void (*count_reaching)(std::uint64_t* counts,
                         const float* in,
                         std::size_t count,
                         const std::uint32_t* lows,
                         std::size_t thresholds);
  /// sums[i % 8] += |in[i]|.
  void (*add_magnitudes)(double* sums, const float* in, std::size_t count);
  /// a_sums[i % 8] += a[i] * a[i], and so for b.
  void (*add_squares)(
      double* a_sums, double* b_sums, const float* a, const float* b, std::size_t count);
  /// See MomentumFactors. Without `momentum`: w -= step_by_change * change. With kept 0 the
  /// momentum is not read.
  void (*momentum_update)(float* weights,
                          const float* gradient,
                          float* momentum,
                          std::size_t count,
                          const MomentumFactors& factors);
};

/// Those that this processor and operating system can run, the widest first. Never empty.
const std::vector<const VectorLevel*>& runnable_vector_levels();

// Function pointers instead of ifunc or target_clones: those break under sanitizers.
extern const VectorLevel kBaselineLevel;
extern const VectorLevel kAvx2Level;    ///< compiled on x86-64 only
extern const VectorLevel kAvx512Level;  ///< compiled on x86-64 only

}  // namespace aiacc
