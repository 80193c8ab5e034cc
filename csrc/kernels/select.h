#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/kernels/selection/threshold_track.h"

namespace aiacc {

struct VectorLevel;

/// How the k largest magnitudes are found. All choose exactly k.
enum class SelectMode : std::uint8_t {
  kTracked,    ///< the choice of kExact; reads once where the threshold is near the predicted one
  kExact,      ///< the largest ones, by a histogram
  kReference,  ///< MSTopK as published, see selection/mstopk.h; not on GPUs
};

/// Memory that selections reuse, of one thread at a time. It grows to about 2 k + count / 64 pairs.
struct SelectScratch {
  std::vector<float> values;
  std::vector<std::uint32_t> indices;
};

struct Selection {
  bool finite = true;      ///< false: there is NaN or infinity, and nothing was selected
  bool fell_back = false;  ///< kTracked only: the predicted threshold was too far off
  /// No magnitude that was left out is larger, save between the two thresholds of kReference.
  float threshold = 0.0F;
};

/// Bytes of k pairs on the wire: k float32 values, then their k indices as uint32.
std::size_t pairs_bytes(std::size_t k);

/// How many of `count` elements a density stands for: ceil(density * count), in double, but at
/// least one and at most `count`. Throws Error(kInvalidArgument) unless 0 <= density <= 1.
std::size_t selected_count(std::size_t count, double density);

/// Writes k pairs of the largest magnitudes of t[i] = factor * in[i] + residual[i] to `wire`, at
/// any address, in the order of their indices, which differ. What is left stays in the residual:
/// t[i], and 0 where t[i] was chosen. Without feedback of the error `residual` is null.
///
/// Where magnitudes at the threshold are equal (kReference: between its two thresholds), a
/// contiguous run of them is taken, at a place that `seed` decides. The same arguments give the
/// same bits on every processor.
///
/// If any t[i] is NaN or infinite, the residual and `track` stay as they are, the first such
/// element is among the pairs, so that every rank sees it, and the others are zeros. So the
/// residual is written only after everything was read: with a residual there is a second read.
///
/// k <= count < 2^32. `in` and `residual` do not overlap. `track` belongs to this buffer, and to
/// kTracked alone. `level`: instructions to use, for tests; null: the widest.
Selection select_largest(void* wire,
                         const float* in,
                         float* residual,
                         std::size_t count,
                         std::size_t k,
                         float factor,
                         SelectMode mode,
                         std::uint64_t seed,
                         ThresholdTrack& track,
                         SelectScratch& scratch,
                         const VectorLevel* level = nullptr);

/// out[index] += factor * value for k pairs, in their order. Throws Error(kInternal), before it
/// writes anything, if an index is not below `count`: it came from another rank.
void scatter_add(float* out, const void* wire, std::size_t k, std::size_t count, float factor);

}  // namespace aiacc
