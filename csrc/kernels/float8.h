#pragma once

#include <cstdint>
#include <cstring>

#include "csrc/kernels/host_device.h"

namespace aiacc {

/// The 8-bit floats of the OCP specification, as bit patterns. E4M3 has no infinity, and one NaN
/// per sign; E5M2 is a short binary16.
struct Float8E4M3 {
  static constexpr int kFractionBits = 3;
  static constexpr int kBias = 7;
  static constexpr std::uint32_t kLargest = 0x7e;   ///< 448
  static constexpr std::uint32_t kInfinity = 0x7f;  ///< what stands for it: NaN
  std::uint8_t bits;
};
struct Float8E5M2 {
  static constexpr int kFractionBits = 2;
  static constexpr int kBias = 15;
  static constexpr std::uint32_t kLargest = 0x7b;  ///< 57344
  static constexpr std::uint32_t kInfinity = 0x7c;
  std::uint8_t bits;
};

namespace float8 {

AIACC_HOST_DEVICE inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

AIACC_HOST_DEVICE inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace float8

/// Exact.
template <class F>
AIACC_HOST_DEVICE float widen_float8(F value) {
  constexpr int kShift = 23 - F::kFractionBits;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - F::kBias) << 23;
  const std::uint32_t sign = (value.bits & 0x80u) << 24;
  const std::uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude > F::kLargest) {
    const bool infinite = F::kInfinity == 0x7c && magnitude == F::kInfinity;
    return float8::float_of(sign | (infinite ? 0x7f800000u : 0x7fc00000u));
  }
  if (magnitude >> F::kFractionBits == 0) {
    constexpr std::uint32_t kUnit =
        static_cast<std::uint32_t>(127 - (F::kBias - 1 + F::kFractionBits)) << 23;
    const float tiny = static_cast<float>(magnitude) * float8::float_of(kUnit);
    return float8::float_of(sign | float8::bits_of(tiny));
  }
  return float8::float_of(sign | ((magnitude << kShift) + kRebias));
}

/// Rounds to nearest even. What is finite stays finite: beyond the largest number it becomes that
/// number. Infinity stays visible, as NaN where the format has none; NaN becomes 0x7f.
template <class F>
AIACC_HOST_DEVICE F narrow_float8(float value) {
  constexpr int kShift = 23 - F::kFractionBits;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - F::kBias) << 23;
  const std::uint32_t bits = float8::bits_of(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {0x7f};
  }
  if (magnitude == 0x7f800000u) {
    return {static_cast<std::uint8_t>(sign | F::kInfinity)};
  }
  std::uint32_t rounded;
  if (magnitude < kRebias + (1u << 23)) {
    // Floats of this size are as far apart as the subnormals, so the sum rounds as wanted.
    constexpr std::uint32_t kSame =
        static_cast<std::uint32_t>(127 + 23 - (F::kBias - 1 + F::kFractionBits)) << 23;
    rounded = float8::bits_of(float8::float_of(magnitude) + float8::float_of(kSame)) - kSame;
  } else {
    const std::uint32_t half = (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1u);
    rounded = (magnitude - kRebias + half) >> kShift;
  }
  rounded = rounded < F::kLargest ? rounded : F::kLargest;
  return {static_cast<std::uint8_t>(sign | rounded)};
}

}  // namespace aiacc
