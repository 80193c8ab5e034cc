#pragma once

#include <cstdint>
#include <cstring>

// Conversions of 16-bit floats in plain, branch-free integer arithmetic, which compilers vectorise.
// Everything here has internal linkage, because each vector level compiles its own copy.

namespace aiacc {
namespace {

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// `yes` if `condition`, else `no`: compilers turn `?:` on computed values into branches, which
/// keeps them from vectorising.
inline std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// Distance between the exponent biases of binary32 (127) and binary16 (15), in place.
constexpr std::uint32_t kRebias = 112u << 23;

/// Exact. Signalling NaNs become quiet, as the hardware conversions make them.
inline float half_bits_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  const std::uint32_t normal = (magnitude << 13) + kRebias;
  const std::uint32_t special = (normal + kRebias) | select(magnitude > 0x7c00u, 0x400000u, 0u);
  // Half a float's range above 2^-24 is representable, so this product is exact and normal.
  const std::uint32_t tiny =
      bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
  const std::uint32_t finite = select(magnitude < 0x400u, tiny, normal);
  return float_of(sign | select(magnitude >= 0x7c00u, special, finite));
}

/// Rounds to nearest even.
inline std::uint16_t float_to_half_bits(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal = (magnitude - kRebias + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Between 0.5 and 1 floats are 2^-24 apart like binary16's subnormals, so the sum rounds as
  // wanted.
  const std::uint32_t tiny = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const std::uint32_t finite = select(magnitude < 0x38800000u, tiny, normal);
  const std::uint32_t bounded = select(magnitude >= 0x47800000u, 0x7c00u, finite);
  return static_cast<std::uint16_t>(sign | select(magnitude > 0x7f800000u, nan, bounded));
}

inline float bfloat16_bits_to_float(std::uint16_t bits) {
  return float_of(static_cast<std::uint32_t>(bits) << 16);
}

/// Rounds to nearest even. AVX-512's own instruction is not used: it flushes subnormals to zero.
inline std::uint16_t float_to_bfloat16_bits(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>(select((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded));
}

}  // namespace
}  // namespace aiacc
