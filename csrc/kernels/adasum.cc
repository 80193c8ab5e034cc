#include "csrc/kernels/adasum.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/half_bits.h"

namespace aiacc {
namespace {

// Independent sums, so that an addition need not wait for the one before.
constexpr std::size_t kSums = 8;

template <class T>
struct Plain {
  static constexpr std::size_t kBytes = sizeof(T);
  static double load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return static_cast<double>(value);
  }
  static void store(std::byte* to, double value) {
    const auto rounded = static_cast<T>(value);
    std::memcpy(to, &rounded, sizeof rounded);
  }
};

template <float (*widen)(std::uint16_t), std::uint16_t (*narrow)(float)>
struct Narrow {
  static constexpr std::size_t kBytes = sizeof(std::uint16_t);
  static double load(const std::byte* from) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof bits);
    return static_cast<double>(widen(bits));
  }
  static void store(std::byte* to, double value) {
    const std::uint16_t bits = narrow(static_cast<float>(value));
    std::memcpy(to, &bits, sizeof bits);
  }
};

/// Calls `visit` with the way to read and write the elements of `dtype`.
template <class Visit>
void visit_floats(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::kFloat16:
      return visit(Narrow<half_bits_to_float, float_to_half_bits>{});
    case DataType::kBFloat16:
      return visit(Narrow<bfloat16_bits_to_float, float_to_bfloat16_bits>{});
    case DataType::kFloat32:
      return visit(Plain<float>{});
    case DataType::kFloat64:
      return visit(Plain<double>{});
    case DataType::kUInt8:
    case DataType::kInt8:
    case DataType::kUInt16:
    case DataType::kInt16:
    case DataType::kUInt32:
    case DataType::kInt32:
    case DataType::kUInt64:
    case DataType::kInt64:
    case DataType::kBool:
      throw Error(Code::kInvalidArgument,
                  std::string("[kernels] Adasum of ") + name_of(dtype) +
                      " (expected float16, bfloat16, float32 or float64); use Sum for integers");
  }
}

/// What is left of a vector whose square is `own` when its shadow on the other is counted half.
double weight(double ab, double own) {
  static const double kSmallest = std::sqrt(std::numeric_limits<double>::min());
  return own >= kSmallest ? 1.0 - ab / (2.0 * own) : 1.0;
}

}  // namespace

PairProducts pair_products(const void* a, const void* b, std::size_t count, DataType dtype) {
  PairProducts sums[kSums];
  visit_floats(dtype, [&](auto access) {
    using Access = decltype(access);
    const auto* x = static_cast<const std::byte*>(a);
    const auto* y = static_cast<const std::byte*>(b);
    for (std::size_t from = 0; from < count; from += kSums) {
      const std::size_t part = std::min(kSums, count - from);
      for (std::size_t i = 0; i < part; ++i) {
        const double left = Access::load(x + (from + i) * Access::kBytes);
        const double right = Access::load(y + (from + i) * Access::kBytes);
        sums[i].ab += left * right;
        sums[i].aa += left * left;
        sums[i].bb += right * right;
      }
    }
  });
  PairProducts result;
  for (const PairProducts& sum : sums) {
    result.ab += sum.ab;
    result.aa += sum.aa;
    result.bb += sum.bb;
  }
  return result;
}

void combine_adasum(void* out,
                    const void* a,
                    const void* b,
                    std::size_t count,
                    DataType dtype,
                    const PairProducts& products) {
  const double of_a = weight(products.ab, products.aa);
  const double of_b = weight(products.ab, products.bb);
  visit_floats(dtype, [&](auto access) {
    using Access = decltype(access);
    auto* o = static_cast<std::byte*>(out);
    const auto* x = static_cast<const std::byte*>(a);
    const auto* y = static_cast<const std::byte*>(b);
    for (std::size_t at = 0; at < count * Access::kBytes; at += Access::kBytes) {
      Access::store(o + at, of_a * Access::load(x + at) + of_b * Access::load(y + at));
    }
  });
}

}  // namespace aiacc
