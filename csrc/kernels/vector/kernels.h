#pragma once

// The kernels as templates; each vector_<level>.cc compiles them with its own instruction set.
// Only for those files. Everything has internal linkage and no function of the standard library is
// instantiated: a linker would keep one copy of it, possibly one that this processor cannot run.

#include <cstddef>
#include <cstdint>

#include "csrc/base/dtype.h"
#include "csrc/kernels/divisor.h"
#include "csrc/kernels/half_bits.h"

namespace aiacc {
namespace {

/// T at any address and of any provenance.
template <class T>
struct Raw {
#ifdef __SANITIZE_THREAD__  // several times as fast where it relies on alignment, x86 does not
  typedef T Type __attribute__((may_alias));  // NOLINT(modernize-use-using)
#else
  typedef T Type __attribute__((aligned(1), may_alias));  // NOLINT(modernize-use-using)
#endif
};

// Integer sums and products wrap around: computed in an unsigned type of at least 32 bits.
template <class T>
struct Wide {
  using Type = std::uint32_t;
};
template <>
struct Wide<std::int64_t> {
  using Type = std::uint64_t;
};
template <>
struct Wide<std::uint64_t> {
  using Type = std::uint64_t;
};
template <>
struct Wide<float> {
  using Type = float;
};
template <>
struct Wide<double> {
  using Type = double;
};

struct SumOp {
  template <class T>
  static T apply(T a, T b) {
    using W = typename Wide<T>::Type;
    return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
};

struct ProductOp {
  template <class T>
  static T apply(T a, T b) {
    using W = typename Wide<T>::Type;
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  }
};

// `a != a` keeps a NaN on the left; one on the right wins because every comparison with it fails.
struct MinOp {
  template <class T>
  static T apply(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};

struct MaxOp {
  template <class T>
  static T apply(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};

struct OrOp {
  static std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return (a | b) != 0; }
};

struct AndOp {
  static std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return (a != 0) & (b != 0); }
};

template <class T, class Op>
void combine(void* out, const void* a, const void* b, std::size_t count) {
  using R = typename Raw<T>::Type;
  auto* o = static_cast<R*>(out);
  const auto* x = static_cast<const R*>(a);
  const auto* y = static_cast<const R*>(b);
  // `out` is `a`, `b` or apart from both, so no iteration depends on another.
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    o[i] = Op::apply(static_cast<T>(x[i]), static_cast<T>(y[i]));
  }
}

/// The largest of the floats as their bits without sign, which order them, NaN last. `Bits` is
/// signed, since the oldest processors have no unsigned maximum.
template <class Bits>
std::uint64_t largest_bits(const void* in, std::size_t count, Bits without_sign) {
  const auto* x = static_cast<const typename Raw<Bits>::Type*>(in);
  Bits largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<Bits>(x[i] & without_sign);
    largest = bits > largest ? bits : largest;
  }
  return static_cast<std::uint64_t>(largest);
}

using Bits16 = Raw<std::uint16_t>::Type;
using Float = Raw<float>::Type;

/// bfloat16 in blocks that stay in the first-level cache.
struct BFloat16Blocks {
  static void widen(Float* out, const Bits16* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = bfloat16_bits_to_float(in[i]);
    }
  }
  static void narrow(Bits16* out, const Float* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = float_to_bfloat16_bits(in[i]);
    }
  }
};

/// binary16 likewise, for processors without conversion instructions.
struct PlainHalfBlocks {
  static void widen(Float* out, const Bits16* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = half_bits_to_float(in[i]);
    }
  }
  static void narrow(Bits16* out, const Float* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = float_to_half_bits(in[i]);
    }
  }
};

constexpr std::size_t kBlock = 512;

template <class Blocks, class Op>
void combine_16(void* out, const void* a, const void* b, std::size_t count) {
  auto* o = static_cast<Bits16*>(out);
  const auto* x = static_cast<const Bits16*>(a);
  const auto* y = static_cast<const Bits16*>(b);
  float left[kBlock];
  float right[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t n = count - at < kBlock ? count - at : kBlock;
    Blocks::widen(left, x + at, n);
    Blocks::widen(right, y + at, n);
    for (std::size_t i = 0; i < n; ++i) {
      left[i] = Op::apply(left[i], right[i]);
    }
    Blocks::narrow(o + at, left, n);
  }
}

template <class Half>
struct Kernels {
  template <class Op, class LogicalOp>
  static void combine_any(
      void* out, const void* a, const void* b, std::size_t count, DataType dtype) {
    switch (dtype) {
      case DataType::kUInt8:
        return combine<std::uint8_t, Op>(out, a, b, count);
      case DataType::kInt8:
        return combine<std::int8_t, Op>(out, a, b, count);
      case DataType::kUInt16:
        return combine<std::uint16_t, Op>(out, a, b, count);
      case DataType::kInt16:
        return combine<std::int16_t, Op>(out, a, b, count);
      case DataType::kUInt32:
        return combine<std::uint32_t, Op>(out, a, b, count);
      case DataType::kUInt64:
        return combine<std::uint64_t, Op>(out, a, b, count);
      case DataType::kInt32:
        return combine<std::int32_t, Op>(out, a, b, count);
      case DataType::kInt64:
        return combine<std::int64_t, Op>(out, a, b, count);
      case DataType::kFloat16:
        return combine_16<Half, Op>(out, a, b, count);
      case DataType::kFloat32:
        return combine<float, Op>(out, a, b, count);
      case DataType::kFloat64:
        return combine<double, Op>(out, a, b, count);
      case DataType::kBool:
        return combine<std::uint8_t, LogicalOp>(out, a, b, count);
      case DataType::kBFloat16:
        return combine_16<BFloat16Blocks, Op>(out, a, b, count);
    }
  }

  /// The caller has checked `op`.
  static void reduce_into(
      void* out, const void* a, const void* b, std::size_t count, DataType dtype, ReduceOp op) {
    switch (op) {
      case ReduceOp::kSum:
        return combine_any<SumOp, OrOp>(out, a, b, count, dtype);
      case ReduceOp::kMin:
        return combine_any<MinOp, AndOp>(out, a, b, count, dtype);
      case ReduceOp::kMax:
        return combine_any<MaxOp, OrOp>(out, a, b, count, dtype);
      case ReduceOp::kProduct:
        return combine_any<ProductOp, AndOp>(out, a, b, count, dtype);
      case ReduceOp::kAverage:
      case ReduceOp::kAdasum:
        return;
    }
  }

  template <class T>
  static void scale_float(void* out, const void* in, std::size_t count, double wide_factor) {
    using R = typename Raw<T>::Type;
    auto* o = static_cast<R*>(out);
    const auto* x = static_cast<const R*>(in);
    if (const std::uint32_t whole = divisor_of(wide_factor)) {
      const T divisor = static_cast<T>(whole);
#pragma GCC ivdep
      for (std::size_t i = 0; i < count; ++i) {
        o[i] = x[i] / divisor;
      }
      return;
    }
    const T factor = static_cast<T>(wide_factor);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
      o[i] = factor * x[i];
    }
  }

  template <class Blocks>
  static void scale_16(void* out, const void* in, std::size_t count, double factor) {
    auto* o = static_cast<Bits16*>(out);
    const auto* x = static_cast<const Bits16*>(in);
    float values[kBlock];
    for (std::size_t at = 0; at < count; at += kBlock) {
      const std::size_t n = count - at < kBlock ? count - at : kBlock;
      Blocks::widen(values, x + at, n);
      scale_float<float>(values, values, n, factor);
      Blocks::narrow(o + at, values, n);
    }
  }

  template <class Blocks>
  static void narrow_to(void* out, const void* in, std::size_t count, double factor) {
    auto* o = static_cast<Bits16*>(out);
    const auto* x = static_cast<const Float*>(in);
    if (factor == 1.0) {
      return Blocks::narrow(o, x, count);
    }
    float values[kBlock];
    for (std::size_t at = 0; at < count; at += kBlock) {
      const std::size_t n = count - at < kBlock ? count - at : kBlock;
      scale_float<float>(values, x + at, n, factor);
      Blocks::narrow(o + at, values, n);
    }
  }

  template <class Blocks>
  static void widen_from(void* out, const void* in, std::size_t count, double factor) {
    auto* o = static_cast<Float*>(out);
    const auto* x = static_cast<const Bits16*>(in);
    if (factor == 1.0) {
      return Blocks::widen(o, x, count);
    }
    float values[kBlock];
    for (std::size_t at = 0; at < count; at += kBlock) {
      const std::size_t n = count - at < kBlock ? count - at : kBlock;
      Blocks::widen(values, x + at, n);
      scale_float<float>(o + at, values, n, factor);
    }
  }

  /// The caller has checked that `to` is one of the two.
  static void narrow(void* out, const void* in, std::size_t count, DataType to, double factor) {
    return to == DataType::kFloat16 ? narrow_to<Half>(out, in, count, factor)
                                    : narrow_to<BFloat16Blocks>(out, in, count, factor);
  }
  static void widen(void* out, const void* in, std::size_t count, DataType from, double factor) {
    return from == DataType::kFloat16 ? widen_from<Half>(out, in, count, factor)
                                      : widen_from<BFloat16Blocks>(out, in, count, factor);
  }

  /// Truncated toward zero. Exact: a double tells the quotient of 32 bits from the next whole
  /// number.
  template <class T>
  static void divide_int(void* out, const void* in, std::size_t count, std::uint32_t divisor) {
    if constexpr (sizeof(T) > 4) {
      return divide_int64<T>(out, in, count, divisor);
    }
    using R = typename Raw<T>::Type;
    auto* o = static_cast<R*>(out);
    const auto* x = static_cast<const R*>(in);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
      o[i] = static_cast<T>(static_cast<double>(x[i]) / divisor);
    }
  }

  /// Multiplies by the reciprocal in 64 fractional bits, which may be one too small: faster than
  /// the instruction that divides.
  template <class T>
  static void divide_int64(void* out, const void* in, std::size_t count, std::uint32_t divisor) {
    __extension__ using Product = unsigned __int128;
    using R = typename Raw<T>::Type;
    auto* o = static_cast<R*>(out);
    const auto* x = static_cast<const R*>(in);
    const std::uint64_t reciprocal = UINT64_MAX / divisor;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t sign = x[i] < T{0} ? UINT64_MAX : 0;
      const std::uint64_t magnitude = (static_cast<std::uint64_t>(x[i]) ^ sign) - sign;
      auto quotient = static_cast<std::uint64_t>((Product{magnitude} * reciprocal) >> 64);
      quotient += static_cast<std::uint64_t>(magnitude - quotient * divisor >= divisor);
      o[i] = static_cast<T>((quotient ^ sign) - sign);
    }
  }

  /// Out of range becomes the nearest bound and NaN zero: the plain conversion is undefined there.
  template <class T>
  static void scale_int(
      void* out, const void* in, std::size_t count, double factor, T low, T high) {
    if (const std::uint32_t divisor = reciprocal_of(factor)) {
      return divide_int<T>(out, in, count, divisor);
    }
    using R = typename Raw<T>::Type;
    auto* o = static_cast<R*>(out);
    const auto* x = static_cast<const R*>(in);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
      const double value = static_cast<double>(x[i]) * factor;
      if (value >= static_cast<double>(high)) {
        o[i] = high;
      } else if (value <= static_cast<double>(low)) {
        o[i] = low;
      } else {
        o[i] = value == value ? static_cast<T>(value) : T{0};
      }
    }
  }

  static void scale_bool(void* out, const void* in, std::size_t count, double factor) {
    auto* o = static_cast<std::uint8_t*>(out);
    const auto* x = static_cast<const std::uint8_t*>(in);
    const bool keeps = factor >= 1.0 || factor <= -1.0;  // truncates to something else than zero
    for (std::size_t i = 0; i < count; ++i) {
      o[i] = static_cast<std::uint8_t>((x[i] != 0) & keeps);
    }
  }

  static void scale(void* out, const void* in, std::size_t count, DataType dtype, double factor) {
    switch (dtype) {
      case DataType::kUInt8:
        return scale_int<std::uint8_t>(out, in, count, factor, 0, UINT8_MAX);
      case DataType::kInt8:
        return scale_int<std::int8_t>(out, in, count, factor, INT8_MIN, INT8_MAX);
      case DataType::kUInt16:
        return scale_int<std::uint16_t>(out, in, count, factor, 0, UINT16_MAX);
      case DataType::kInt16:
        return scale_int<std::int16_t>(out, in, count, factor, INT16_MIN, INT16_MAX);
      case DataType::kUInt32:
        return scale_int<std::uint32_t>(out, in, count, factor, 0, UINT32_MAX);
      case DataType::kUInt64:
        return scale_int<std::uint64_t>(out, in, count, factor, 0, UINT64_MAX);
      case DataType::kInt32:
        return scale_int<std::int32_t>(out, in, count, factor, INT32_MIN, INT32_MAX);
      case DataType::kInt64:
        return scale_int<std::int64_t>(out, in, count, factor, INT64_MIN, INT64_MAX);
      case DataType::kFloat16:
        return scale_16<Half>(out, in, count, factor);
      case DataType::kFloat32:
        return scale_float<float>(out, in, count, factor);
      case DataType::kFloat64:
        return scale_float<double>(out, in, count, factor);
      case DataType::kBool:
        return scale_bool(out, in, count, factor);
      case DataType::kBFloat16:
        return scale_16<BFloat16Blocks>(out, in, count, factor);
    }
  }

  /// The caller has checked that `dtype` is floating.
  static std::uint64_t largest_magnitude(const void* in, std::size_t count, DataType dtype) {
    switch (dtype) {
      case DataType::kFloat64:
        return largest_bits<std::int64_t>(in, count, INT64_MAX);
      case DataType::kFloat32:
        return largest_bits<std::int32_t>(in, count, INT32_MAX);
      default:
        return largest_bits<std::int16_t>(in, count, INT16_MAX);
    }
  }
};

}  // namespace
}  // namespace aiacc
