#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "csrc/kernels/vector/level.h"

namespace aiacc {

/// Magnitudes are compared as their bits, which order them, NaN last.
inline std::uint32_t magnitude_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffff;
}

inline float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr std::uint32_t kInfinityBits = 0x7f800000;

/// What is selected from: t[i] = factor * in[i] (+ residual[i]), made in blocks that stay in the
/// first-level cache. A view.
class Source {
 public:
  static constexpr std::size_t kBlock = 2048;

  Source(const VectorLevel& level,
         const float* in,
         const float* residual,
         std::size_t count,
         float factor)
      : level_(level), in_(in), residual_(residual), count_(count), factor_(factor) {}

  const VectorLevel& level() const { return level_; }
  std::size_t count() const { return count_; }

  /// Writes t[at .. at + n) to `out`, which may be that part of the residual. Returns the bits of
  /// the largest magnitude.
  std::uint32_t read(float* out, std::size_t at, std::size_t n) const {
    const float* residual = residual_ == nullptr ? nullptr : residual_ + at;
    return level_.accumulate(out, in_ + at, residual, n, factor_);
  }

  /// Calls visit(block, size, index of its first) in order. Returns the bits of the largest
  /// magnitude.
  template <class Visit>
  std::uint32_t for_each_block(Visit visit) const {
    alignas(64) float block[kBlock];
    std::uint32_t largest = 0;
    for (std::size_t at = 0; at < count_; at += kBlock) {
      const std::size_t n = std::min(kBlock, count_ - at);
      largest = std::max(largest, read(block, at, n));
      visit(static_cast<const float*>(block), n, at);
    }
    return largest;
  }

 private:
  const VectorLevel& level_;
  const float* in_;
  const float* residual_;
  std::size_t count_;
  float factor_;
};

/// Two thresholds around the k-th largest magnitude. What reaches `high` is chosen, and of what
/// reaches only `low` as much as is missing.
struct Bracket {
  float high;
  float low;
  std::size_t above;    ///< how many reach `high`: at most k
  std::size_t reached;  ///< how many reach `low`: at least k
};

}  // namespace aiacc
