#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/kernels/float8.h"
#include "csrc/kernels/half.h"

namespace aiacc {

/// 16-bit floats as values, so that the references below read like arithmetic.
struct Half {
  std::uint16_t bits;
  explicit operator float() const { return half_to_float(bits); }
  static Half from(float value) { return {float_to_half(value)}; }
};
struct BFloat16 {
  std::uint16_t bits;
  explicit operator float() const { return bfloat16_to_float(bits); }
  static BFloat16 from(float value) { return {float_to_bfloat16(value)}; }
};
struct Bool {
  std::uint8_t bits;
};

template <class T>
constexpr bool kIs16Bit = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// Calls `visit(T{})` with the element type of `dtype`.
template <class Visit>
void visit_dtype(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::kUInt8:
      return visit(std::uint8_t{});
    case DataType::kInt8:
      return visit(std::int8_t{});
    case DataType::kUInt16:
      return visit(std::uint16_t{});
    case DataType::kInt16:
      return visit(std::int16_t{});
    case DataType::kUInt32:
      return visit(std::uint32_t{});
    case DataType::kUInt64:
      return visit(std::uint64_t{});
    case DataType::kInt32:
      return visit(std::int32_t{});
    case DataType::kInt64:
      return visit(std::int64_t{});
    case DataType::kFloat16:
      return visit(Half{});
    case DataType::kFloat32:
      return visit(float{});
    case DataType::kFloat64:
      return visit(double{});
    case DataType::kBool:
      return visit(Bool{});
    case DataType::kBFloat16:
      return visit(BFloat16{});
  }
}

/// An element as a number, and the other way round.
template <class T>
double number_of(T value) {
  if constexpr (kIs16Bit<T>) {
    return static_cast<double>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return value.bits;
  } else {
    return static_cast<double>(value);
  }
}

template <class T>
T element_of(double value) {
  if constexpr (kIs16Bit<T>) {
    return T::from(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<std::uint8_t>(value)};
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// A float in a format that narrows it, one after the other; and back.
inline std::uint16_t narrow_plainly(float value, WireFormat wire) {
  switch (wire) {
    case WireFormat::kFloat16:
      return float_to_half(value);
    case WireFormat::kBFloat16:
      return float_to_bfloat16(value);
    case WireFormat::kFloat8E4M3:
      return narrow_float8<Float8E4M3>(value).bits;
    default:
      return narrow_float8<Float8E5M2>(value).bits;
  }
}

inline float widen_plainly(std::uint16_t bits, WireFormat wire) {
  const auto byte = static_cast<std::uint8_t>(bits);
  switch (wire) {
    case WireFormat::kFloat16:
      return half_to_float(bits);
    case WireFormat::kBFloat16:
      return bfloat16_to_float(bits);
    case WireFormat::kFloat8E4M3:
      return widen_float8(Float8E4M3{byte});
    default:
      return widen_float8(Float8E5M2{byte});
  }
}

inline std::vector<DataType> all_dtypes() {
  std::vector<DataType> dtypes;
  for (int i = 0; i < kDataTypes; ++i) {
    dtypes.push_back(dtype_from(i));
  }
  return dtypes;
}

inline const std::vector<ReduceOp>& engine_ops() {
  static const std::vector<ReduceOp> ops = {
      ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
  return ops;
}

/// One element, combined the plain way.
template <class T>
T combine_plainly(T a, T b, ReduceOp op) {
  if constexpr (kIs16Bit<T>) {
    return T::from(combine_plainly(static_cast<float>(a), static_cast<float>(b), op));
  } else if constexpr (std::is_same_v<T, Bool>) {
    const bool either = op == ReduceOp::kSum || op == ReduceOp::kMax;
    const bool x = a.bits != 0;
    const bool y = b.bits != 0;
    return {static_cast<std::uint8_t>(either ? x || y : x && y)};
  } else if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::kSum) {
      return a + b;
    }
    if (op == ReduceOp::kProduct) {
      return a * b;
    }
    if (std::isnan(a) || std::isnan(b)) {
      return std::isnan(a) ? a : b;
    }
    return op == ReduceOp::kMin ? (a < b ? a : b) : (a > b ? a : b);
  } else {
    if (op == ReduceOp::kSum) {
      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    }
    if (op == ReduceOp::kProduct) {
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    }
    return op == ReduceOp::kMin ? (a < b ? a : b) : (a > b ? a : b);
  }
}

template <class T>
bool is_nan(T value) {
  if constexpr (kIs16Bit<T> || std::is_floating_point_v<T>) {
    return std::isnan(number_of(value));
  }
  return false;
}

/// A float by the rules of kernels/scale.h: divided by 3 or 7 where the factor is the reciprocal of
/// those.
template <class Float>
Float times(Float value, double factor) {
  for (const int divisor : {3, 7}) {
    if (factor == 1.0 / divisor) {
      return value / static_cast<Float>(divisor);
    }
  }
  return value * static_cast<Float>(factor);
}

/// Same bits, or both NaN.
template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (is_nan(a) && is_nan(b));
}

/// Every pattern is possible: NaN, infinities and subnormals of the floats are among 16-bit ones
/// by chance and sown into the wider ones.
template <class T>
std::vector<T> any_elements(std::size_t count, std::uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> elements(count);
  for (T& element : elements) {
    const std::uint64_t bits = random();
    std::memcpy(&element, &bits, sizeof element);
    if constexpr (std::is_floating_point_v<T>) {
      const T special[] = {T(NAN),
                           T(INFINITY),
                           -T(INFINITY),
                           T(0),
                           -T(0),
                           std::numeric_limits<T>::denorm_min(),
                           std::numeric_limits<T>::max()};
      if (random() % 4 == 0) {
        element = special[random() % 7];
      } else {
        element = static_cast<T>(static_cast<std::int32_t>(bits)) / T(1 << 16);
      }
    }
  }
  return elements;
}

}  // namespace aiacc
