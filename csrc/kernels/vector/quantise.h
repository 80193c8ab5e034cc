#pragma once

// The kernels of ../quantise.h, as templates for the files that compile kernels.h: the same rules.
// Additions and multiplications in float32 and integers are all there is, in the order of the
// source, so that all levels give the same bits.

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/quantise.h"
#include "csrc/kernels/vector/kernels.h"

namespace aiacc {
namespace {

inline std::uint32_t raw_bits(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float raw_float(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// What elements draw by chance: 32 bits from the seed and their index, by multiplications and
/// shifts that change half of the bits for each bit that differs.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t index) : first_(static_cast<std::uint32_t>(index)) {
    std::uint64_t key = seed + ((index >> 32) + 1) * 0x9e3779b97f4a7c15;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
    key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
    key ^= key >> 31;
    first_ += static_cast<std::uint32_t>(key);
    second_key_ = static_cast<std::uint32_t>(key >> 32);
  }
  std::uint32_t operator[](std::uint32_t i) const {
    std::uint32_t bits = first_ + i;
    bits = (bits ^ (bits >> 16)) * 0x7feb352d;
    bits = (bits ^ (bits >> 15) ^ second_key_) * 0x846ca68b;
    return bits ^ (bits >> 16);
  }

 private:
  std::uint32_t first_;
  std::uint32_t second_key_;
};

/// Integers from -kMost to kMost. `x` is at most kMost, save for the last bits.
template <int kMost>
struct IntegerCode {
  static constexpr float kLargest = kMost;
  /// Floats of this size are whole numbers, whose last bits are those of what has been added.
  static constexpr float kWhole = 12582912.0F;  // 1.5 * 2^23

  static std::uint32_t nearest(float x) { return raw_bits(x + kWhole) - raw_bits(kWhole); }
  /// Adds a number between -1/2 and 1/2, of 16 random bits, so that one has no way to reach the
  /// next whole number from one.
  static std::uint32_t by_chance(float x, std::uint32_t draw) {
    x = x < kLargest ? x : kLargest;
    x = x > -kLargest ? x : -kLargest;
    return nearest(x + (raw_float(0x3f800040 | ((draw >> 9) & 0x7fff80)) - 1.5F));
  }
  static float value(std::uint32_t code) {
    return static_cast<float>(static_cast<std::int32_t>(code));
  }
};

struct Int8Code : IntegerCode<127> {
  static std::uint32_t extend(std::uint8_t code) {
    return static_cast<std::uint32_t>(static_cast<std::int8_t>(code));
  }
};

struct Int4Code : IntegerCode<7> {
  static std::uint32_t extend(std::uint32_t code) { return ((code & 0xf) ^ 8) - 8; }
};

/// As float8.h has it, without branches; a code is never NaN.
struct Float8Code {
  static constexpr float kLargest = 448;
  static constexpr std::uint32_t kRebias = (127 - 7) << 23;
  static constexpr std::uint32_t kLeastNormal = kRebias + (1 << 23);  // 2^-6
  static constexpr std::uint32_t kMost = 0x7e;

  static std::uint32_t finish(float x, std::uint32_t magnitude) {
    const std::uint32_t sign = (raw_bits(x) >> 24) & 0x80;
    return sign | (magnitude < kMost ? magnitude : kMost);
  }
  static std::uint32_t nearest(float x) {
    constexpr float kSame = 16384.0F;  // floats of this size are as far apart as the subnormals
    const std::uint32_t bits = raw_bits(x) & 0x7fffffff;
    const std::uint32_t normal = (bits - kRebias + 0x7ffff + ((bits >> 20) & 1)) >> 20;
    const std::uint32_t subnormal = raw_bits(raw_float(bits) + kSame) - raw_bits(kSame);
    return finish(x, bits < kLeastNormal ? subnormal : normal);
  }
  /// Adds 20 random bits below the last one that is kept.
  static std::uint32_t by_chance(float x, std::uint32_t draw) {
    const std::uint32_t bits = raw_bits(x) & 0x7fffffff;
    const bool subnormal = bits < kLeastNormal;
    const float small = subnormal ? raw_float(bits) : 0.0F;
    const auto fixed = static_cast<std::uint32_t>(static_cast<std::int32_t>(small * 0x1p29F));
    return finish(x, ((subnormal ? fixed : bits - kRebias) + (draw >> 12)) >> 20);
  }
  static float value(std::uint32_t code) {
    const std::uint32_t magnitude = code & 0x7f;
    const float normal = raw_float((magnitude << 20) + kRebias);
    const float positive = magnitude < 8 ? normal + normal - 0x1p-6F : normal;
    return raw_float(raw_bits(positive) | ((code & 0x80) << 24));
  }
  static std::uint32_t extend(std::uint8_t code) { return code; }
};

/// Two to a byte: the first half of the block in the low bits, the second in the high ones.
template <class Code>
constexpr bool kPacked = false;
template <>
constexpr bool kPacked<Int4Code> = true;

using Byte = std::uint8_t;
constexpr std::size_t kLongestBlock = 1024;

template <class Code>
struct BlockKernels {
  static std::size_t bytes_of(std::size_t n) { return kPacked<Code> ? (n + 1) / 2 : n; }

  /// By the largest magnitude, which is finite.
  static float scale_for(std::uint32_t largest) {
    constexpr std::uint32_t kDropped = 0x7f;
    constexpr float kLeast = 0x1p-126F;  // its reciprocal is finite
    // The largest whose products are finite.
    const std::uint32_t most = raw_bits(raw_float(0x7f7fffff) / Code::kLargest) & ~kDropped;
    if (largest == 0) {
      return 0.0F;
    }
    std::uint32_t bits = raw_bits(raw_float(largest) / Code::kLargest);
    bits = (bits + kDropped) & ~kDropped;
    bits = bits < most ? bits : most;
    return bits > raw_bits(kLeast) ? raw_float(bits) : kLeast;
  }

  template <bool kByChance, bool kKeeps>
  static void write_codes(Byte* codes,
                          const Float* t,
                          Float* residual,
                          std::uint32_t n,
                          float scale,
                          const Draws& draws) {
    const float reciprocal = scale > 0.0F ? 1.0F / scale : 0.0F;
#pragma GCC ivdep
    for (std::uint32_t i = 0; i < n; ++i) {
      const float x = t[i] * reciprocal;
      const std::uint32_t code = kByChance ? Code::by_chance(x, draws[i]) : Code::nearest(x);
      codes[i] = static_cast<Byte>(code);
      if (kKeeps) {
        residual[i] = t[i] - Code::value(code) * scale;
      }
    }
  }

  static void encode_block(Byte* codes,
                           const Float* t,
                           Float* residual,
                           std::uint32_t n,
                           float scale,
                           bool by_chance,
                           const Draws& draws) {
    if (by_chance) {
      return residual != nullptr ? write_codes<true, true>(codes, t, residual, n, scale, draws)
                                 : write_codes<true, false>(codes, t, residual, n, scale, draws);
    }
    return residual != nullptr ? write_codes<false, true>(codes, t, residual, n, scale, draws)
                               : write_codes<false, false>(codes, t, residual, n, scale, draws);
  }

  static void pack(Byte* packed, const Byte* codes, std::size_t n) {
    const std::size_t low = (n + 1) / 2;
    const std::size_t high = n / 2;
#pragma GCC ivdep
    for (std::size_t i = 0; i < high; ++i) {
      packed[i] = static_cast<Byte>((codes[i] & 0xf) | (codes[low + i] << 4));
    }
    if (low > high) {
      packed[high] = codes[high] & 0xf;
    }
  }

  /// t of a block in float32.
  static void add_up(
      float* t, const Float* in, const Float* residual, std::size_t n, float factor) {
    if (residual == nullptr) {
      for (std::size_t i = 0; i < n; ++i) {
        t[i] = factor * in[i];
      }
      return;
    }
    for (std::size_t i = 0; i < n; ++i) {
      t[i] = factor * in[i] + residual[i];
    }
  }

  static void encode(Byte* wire,
                     const Float* in,
                     Float* residual,
                     std::size_t count,
                     std::size_t block,
                     float factor,
                     const Rounding& rounding,
                     std::uint64_t first_index) {
    constexpr std::uint32_t kInfinity = 0x7f800000;
    float sums[kLongestBlock];
    Byte unpacked[kLongestBlock];
    const bool copies = factor != 1.0F || residual != nullptr;
    for (std::size_t at = 0; at < count; at += block) {
      const std::size_t n = count - at < block ? count - at : block;
      Float* rest = residual != nullptr ? residual + at : nullptr;
      if (copies) {
        add_up(sums, in + at, rest, n, factor);
      }
      const Float* t = copies ? sums : in + at;
      const auto largest = static_cast<std::uint32_t>(largest_bits<std::int32_t>(t, n, INT32_MAX));
      const float scale = largest < kInfinity ? scale_for(largest) : raw_float(0x7fc00000);
      __builtin_memcpy(wire, &scale, sizeof scale);
      wire += sizeof scale;
      if (largest >= kInfinity) {
        __builtin_memset(wire, 0, bytes_of(n));
      } else {
        Byte* codes = kPacked<Code> ? unpacked : wire;
        encode_block(codes,
                     t,
                     rest,
                     static_cast<std::uint32_t>(n),
                     scale,
                     rounding.stochastic,
                     Draws(rounding.seed, first_index + at));
        if (kPacked<Code>) {
          pack(wire, codes, n);
        }
      }
      wire += bytes_of(n);
    }
  }

  struct Assign {
    float factor;
    void operator()(Float& out, float decoded) const { out = factor * decoded; }
  };
  struct Add {
    void operator()(Float& out, float decoded) const { out = out + decoded; }
  };

  template <class Put>
  static void decode_block(
      Float* out, const Byte* codes, std::size_t n, float scale, const Put& put) {
    if (!kPacked<Code>) {
#pragma GCC ivdep
      for (std::size_t i = 0; i < n; ++i) {
        put(out[i], Code::value(Code::extend(codes[i])) * scale);
      }
      return;
    }
    const std::size_t low = (n + 1) / 2;
#pragma GCC ivdep
    for (std::size_t i = 0; i < low; ++i) {
      put(out[i], Code::value(Code::extend(codes[i])) * scale);
    }
#pragma GCC ivdep
    for (std::size_t i = 0; i < n / 2; ++i) {
      put(out[low + i], Code::value(Code::extend(static_cast<Byte>(codes[i] >> 4))) * scale);
    }
  }

  template <class Put>
  static void decode(
      Float* out, const Byte* wire, std::size_t count, std::size_t block, const Put& put) {
    for (std::size_t at = 0; at < count; at += block) {
      const std::size_t n = count - at < block ? count - at : block;
      float scale;
      __builtin_memcpy(&scale, wire, sizeof scale);
      decode_block(out + at, wire + sizeof scale, n, scale, put);
      wire += sizeof scale + bytes_of(n);
    }
  }
};

/// Calls `visit` with the kernels of the format, which the caller has checked.
template <class Visit>
void visit_format(BlockFormat format, const Visit& visit) {
  switch (format) {
    case BlockFormat::kInt8:
      return visit(BlockKernels<Int8Code>());
    case BlockFormat::kInt4:
      return visit(BlockKernels<Int4Code>());
    case BlockFormat::kFloat8E4M3:
      return visit(BlockKernels<Float8Code>());
  }
}

void encode_any_blocks(void* wire,
                       const void* in,
                       void* residual,
                       std::size_t count,
                       const BlockCode& code,
                       float factor,
                       const Rounding& rounding,
                       std::uint64_t first_index) {
  visit_format(code.format, [&](auto kernels) {
    kernels.encode(static_cast<Byte*>(wire),
                   static_cast<const Float*>(in),
                   static_cast<Float*>(residual),
                   count,
                   code.block,
                   factor,
                   rounding,
                   first_index);
  });
}

void decode_any_blocks(
    void* out, const void* wire, std::size_t count, const BlockCode& code, float factor) {
  visit_format(code.format, [&](auto kernels) {
    const typename decltype(kernels)::Assign put = {factor};
    kernels.decode(
        static_cast<Float*>(out), static_cast<const Byte*>(wire), count, code.block, put);
  });
}

void decode_add_any_blocks(void* out, const void* wire, std::size_t count, const BlockCode& code) {
  visit_format(code.format, [&](auto kernels) {
    const typename decltype(kernels)::Add put = {};
    kernels.decode(
        static_cast<Float*>(out), static_cast<const Byte*>(wire), count, code.block, put);
  });
}

}  // namespace
}  // namespace aiacc
