#pragma once

// What vector/quantise.h, and gpu/block_code_body.h on a GPU, make of one number: an integer or an
// 8-bit float, as the low bits of 32.
// Additions and multiplications in float32 and integers are all there is, in the order of the
// source, so that all levels give the same bits. The rules of vector/kernels.h hold here, too.

#include <cstdint>

#include "csrc/kernels/host_device.h"

namespace aiacc {
namespace {

AIACC_HOST_DEVICE inline std::uint32_t raw_bits(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

AIACC_HOST_DEVICE inline float raw_float(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// The scale of a block by its largest magnitude, which is finite: see ../quantise.h.
template <class Format>
AIACC_HOST_DEVICE float scale_for(std::uint32_t largest) {
  constexpr std::uint32_t kDropped = 0x7f;
  constexpr float kLeast = 0x1p-126F;  // its reciprocal is finite
  // The largest whose products are finite.
  const std::uint32_t most = raw_bits(raw_float(0x7f7fffff) / Format::kLargest) & ~kDropped;
  if (largest == 0) {
    return 0.0F;
  }
  std::uint32_t bits = raw_bits(raw_float(largest) / Format::kLargest);
  bits = (bits + kDropped) & ~kDropped;
  bits = bits < most ? bits : most;
  return bits > raw_bits(kLeast) ? raw_float(bits) : kLeast;
}

/// What 2^32 elements share of what they draw: those whose indices have the same upper half.
struct DrawKeys {
  AIACC_HOST_DEVICE DrawKeys(std::uint64_t seed, std::uint32_t upper_index) {
    std::uint64_t key = seed + (std::uint64_t{upper_index} + 1) * 0x9e3779b97f4a7c15;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
    key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
    key ^= key >> 31;
    first = static_cast<std::uint32_t>(key);
    second = static_cast<std::uint32_t>(key >> 32);
  }
  std::uint32_t first;
  std::uint32_t second;
};

/// What elements draw by chance: 32 bits that depend on the seed and their index alone.
class Draws {
 public:
  AIACC_HOST_DEVICE Draws(const DrawKeys& keys, std::uint32_t lower_index)
      : first_(lower_index + keys.first), second_key_(keys.second) {}
  AIACC_HOST_DEVICE Draws(std::uint64_t seed, std::uint64_t index)
      : Draws(DrawKeys(seed, static_cast<std::uint32_t>(index >> 32)),
              static_cast<std::uint32_t>(index)) {}
  /// Those of the elements from the i-th on.
  AIACC_HOST_DEVICE Draws from(std::uint32_t i) const {
    Draws later = *this;
    later.first_ += i;
    return later;
  }
  AIACC_HOST_DEVICE std::uint32_t operator[](std::uint32_t i) const { return bits<0xffffffff>(i); }
  /// The same for who looks at the bits of a mask only.
  template <std::uint32_t kMask>
  AIACC_HOST_DEVICE std::uint32_t bits(std::uint32_t i) const {
    std::uint32_t bits = first_ + i;
    bits = (bits ^ (bits >> 16)) * 0x7feb352d;
    bits = (bits ^ (bits >> 15) ^ second_key_) * 0x846ca68b;
    return (kMask & 0xffff) == 0 ? bits : bits ^ (bits >> 16);
  }

 private:
  std::uint32_t first_;
  std::uint32_t second_key_;
};

// What each format has: `nearest` and `by_chance` give the code of x, which is at most the largest
// number of the format, save for the last bits; `value` what a code stands for; `extend` the code
// of which the low bits are known.

/// Integers from -kMost to kMost.
template <int kMost>
struct IntegerCode {
  static constexpr float kLargest = kMost;
  /// Floats of this size are whole numbers, whose last bits are those of what has been added.
  static constexpr float kWhole = 12582912.0F;  // 1.5 * 2^23

  AIACC_HOST_DEVICE static std::uint32_t nearest(float x) {
    return raw_bits(x + kWhole) - raw_bits(kWhole);
  }
  /// Adds a number between -1/2 and 1/2, of 16 random bits and not so close to either that whole
  /// numbers change.
  AIACC_HOST_DEVICE static std::uint32_t by_chance(float x, std::uint32_t draw) {
    const float part = raw_float(0x3f800040 | ((draw >> 9) & 0x7fff80)) - 1.5F;
    auto code = static_cast<std::int32_t>(nearest(x + part));
    code = code < kMost ? code : kMost;
    code = code > -kMost ? code : -kMost;
    return static_cast<std::uint32_t>(code);
  }
  AIACC_HOST_DEVICE static float value(std::uint32_t code) {
    return static_cast<float>(static_cast<std::int32_t>(code));
  }
};

struct Int8Code : IntegerCode<127> {
  static constexpr bool kPacked = false;
  AIACC_HOST_DEVICE static std::uint32_t extend(std::uint8_t code) {
    return static_cast<std::uint32_t>(static_cast<std::int8_t>(code));
  }
};

struct Int4Code : IntegerCode<7> {
  /// Two to a byte: the first half of the block in the low bits, the second in the high ones.
  static constexpr bool kPacked = true;
  AIACC_HOST_DEVICE static std::uint32_t extend(std::uint32_t code) {
    return ((code & 0xf) ^ 8) - 8;
  }
};

/// As float8.h has it, without branches; a code is never NaN.
struct Float8Code {
  static constexpr bool kPacked = false;
  static constexpr float kLargest = 448;
  // Signed, since the older processors compare nothing else.
  static constexpr std::int32_t kRebias = (127 - 7) << 23;
  static constexpr std::int32_t kLeastNormal = kRebias + (1 << 23);  // 2^-6
  static constexpr std::int32_t kMost = 0x7e;

  AIACC_HOST_DEVICE static std::int32_t magnitude_of(float x) {
    return static_cast<std::int32_t>(raw_bits(x) & 0x7fffffff);
  }
  AIACC_HOST_DEVICE static float positive(std::int32_t bits) {
    return raw_float(static_cast<std::uint32_t>(bits));
  }
  AIACC_HOST_DEVICE static std::uint32_t finish(float x, std::int32_t magnitude) {
    const std::uint32_t sign = (raw_bits(x) >> 24) & 0x80;
    return sign | static_cast<std::uint32_t>(magnitude < kMost ? magnitude : kMost);
  }
  AIACC_HOST_DEVICE static std::uint32_t nearest(float x) {
    constexpr float kSame = 16384.0F;  // floats of this size are as far apart as the subnormals
    const std::int32_t bits = magnitude_of(x);
    const std::int32_t normal = (bits - kRebias + 0x7ffff + ((bits >> 20) & 1)) >> 20;
    const std::int32_t subnormal = magnitude_of(positive(bits) + kSame) - magnitude_of(kSame);
    return finish(x, bits < kLeastNormal ? subnormal : normal);
  }
  /// Adds 20 random bits below the last one that is kept.
  AIACC_HOST_DEVICE static std::uint32_t by_chance(float x, std::uint32_t draw) {
    const std::int32_t bits = magnitude_of(x);
    const bool subnormal = bits < kLeastNormal;
    const auto fixed = static_cast<std::int32_t>((subnormal ? positive(bits) : 0.0F) * 0x1p29F);
    const auto added = static_cast<std::int32_t>(draw >> 12);
    return finish(x, ((subnormal ? fixed : bits - kRebias) + added) >> 20);
  }
  AIACC_HOST_DEVICE static float value(std::uint32_t code) {
    const auto magnitude = static_cast<std::int32_t>(code & 0x7f);
    const float normal = positive((magnitude << 20) + kRebias);
    const float size = magnitude < 8 ? normal + normal - 0x1p-6F : normal;
    return raw_float(raw_bits(size) | ((code & 0x80) << 24));
  }
  AIACC_HOST_DEVICE static std::uint32_t extend(std::uint8_t code) { return code; }
};

}  // namespace
}  // namespace aiacc
