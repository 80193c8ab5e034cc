#pragma once

// The kernels of select.h as templates, by the rules of kernels.h: only for the files of the
// levels. Of floats their bits without sign are compared, which order magnitudes.

#include "csrc/kernels/vector/kernels.h"

namespace aiacc {
namespace {

using Bits32 = Raw<std::uint32_t>::Type;
using Int32 = Raw<std::int32_t>::Type;

/// Signed, since the oldest processors compare no others; without its sign no number is negative.
inline std::int32_t magnitude_at(const Float* in, std::size_t i) {
  return reinterpret_cast<const Int32*>(in)[i] & INT32_MAX;
}

struct PlainCollect {
  /// Appends to `found` pairs. Without a branch, for none would be foreseen.
  static std::size_t append(float* values,
                            std::uint32_t* indices,
                            std::size_t found,
                            const Float* in,
                            std::size_t begin,
                            std::size_t end,
                            std::int32_t low,
                            std::uint32_t first) {
    for (std::size_t i = begin; i < end; ++i) {
      values[found] = in[i];
      indices[found] = first + static_cast<std::uint32_t>(i);
      found += static_cast<std::size_t>(magnitude_at(in, i) >= low);
    }
    return found;
  }

  static std::size_t collect(float* values,
                             std::uint32_t* indices,
                             const float* in,
                             std::size_t count,
                             std::uint32_t low,
                             std::uint32_t first) {
    return append(values, indices, 0, in, 0, count, static_cast<std::int32_t>(low), first);
  }
};

struct SelectKernels {
  static std::uint32_t accumulate(
      float* out, const float* in, const float* residual, std::size_t count, float factor) {
    auto* o = static_cast<Float*>(out);
    const auto* x = static_cast<const Float*>(in);
    const auto* r = static_cast<const Float*>(residual);
    std::int32_t largest = 0;
    if (r == nullptr) {
#pragma GCC ivdep
      for (std::size_t i = 0; i < count; ++i) {
        const float value = factor * x[i];
        const auto bits = static_cast<std::int32_t>(bits_of(value) & INT32_MAX);
        largest = bits > largest ? bits : largest;
        o[i] = value;
      }
    } else {
#pragma GCC ivdep
      for (std::size_t i = 0; i < count; ++i) {
        const float value = factor * x[i] + r[i];
        const auto bits = static_cast<std::int32_t>(bits_of(value) & INT32_MAX);
        largest = bits > largest ? bits : largest;
        o[i] = value;
      }
    }
    return static_cast<std::uint32_t>(largest);
  }

  static void count_reaching(std::uint64_t* counts,
                             const float* in,
                             std::size_t count,
                             const std::uint32_t* lows,
                             std::size_t thresholds) {
    const auto* x = static_cast<const Float*>(in);
    for (std::size_t j = 0; j < thresholds; ++j) {
      const auto low = static_cast<std::int32_t>(lows[j]);
      std::int32_t reaching = 0;
      for (std::size_t i = 0; i < count; ++i) {
        reaching += static_cast<std::int32_t>(magnitude_at(x, i) >= low);
      }
      counts[j] += static_cast<std::uint64_t>(reaching);
    }
  }

  /// Eight sums on every level, so that all round alike.
  static void add_magnitudes(double* sums, const float* in, std::size_t count) {
    const auto* x = static_cast<const Float*>(in);
    double lanes[8];
    for (int lane = 0; lane < 8; ++lane) {
      lanes[lane] = sums[lane];
    }
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane) {
        lanes[lane] += static_cast<double>(__builtin_fabsf(x[i + lane]));
      }
    }
    for (std::size_t lane = 0; i + lane < count; ++lane) {
      lanes[lane] += static_cast<double>(__builtin_fabsf(x[i + lane]));
    }
    for (int lane = 0; lane < 8; ++lane) {
      sums[lane] = lanes[lane];
    }
  }
};

}  // namespace
}  // namespace aiacc
