#pragma once

// What block_code_body.h does to four neighbours: the bits of ../vector/block_formats.h, in the
// fewest instructions of a GPU. Integer ones count double there, conversions more.

#include <cstdint>

#include "csrc/kernels/host_device.h"
#include "csrc/kernels/vector/block_formats.h"

namespace aiacc {
namespace {

/// Bytes of `low` (numbers 0 to 3) and `high` (4 to 7), chosen by the hexadecimal digits of
/// `which`, the lowest first.
AIACC_HOST_DEVICE inline std::uint32_t choose_bytes(std::uint32_t low,
                                                    std::uint32_t high,
                                                    std::uint32_t which) {
#ifdef __CUDA_ARCH__
  return __byte_perm(low, high, which);
#else
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  std::uint32_t chosen = 0;
  for (int byte = 0; byte < 4; ++byte) {
    const std::uint32_t from = which >> (4 * byte) & 7;
    chosen |= static_cast<std::uint32_t>(both >> (8 * from) & 0xff) << (8 * byte);
  }
  return chosen;
#endif
}

/// The same byte of four numbers, 0 being the lowest.
template <std::uint32_t kByte>
AIACC_HOST_DEVICE std::uint32_t gather_bytes(const std::uint32_t (&from)[4]) {
  constexpr std::uint32_t kPair = (kByte + 4) << 4 | kByte;
  return choose_bytes(
      choose_bytes(from[0], from[1], kPair), choose_bytes(from[2], from[3], kPair), 0x5410);
}

// What each format has: `nearest` and `by_chance` give four codes as bytes, of which a packed
// format has the lower halves; `values` what such codes stand for. kDrawn: the bits of a draw that
// count.

template <class Format>
struct CodePack;

template <class Format>
struct IntegerCodePack {
  static constexpr auto kMost = static_cast<std::uint32_t>(Format::kLargest);
  static constexpr std::uint32_t kDrawn = 0xffff0000;
  static constexpr float kExact = 0x1p23F;  ///< from here on floats are whole numbers

  AIACC_HOST_DEVICE static std::uint32_t nearest(const float (&x)[4]) {
    std::uint32_t sum[4];
    AIACC_UNROLL
    for (int e = 0; e < 4; ++e) {
      sum[e] = raw_bits(x[e] + Format::kWhole);
    }
    return gather_bytes<0>(sum);
  }

  AIACC_HOST_DEVICE static std::uint32_t by_chance(const float (&x)[4],
                                                   const std::uint32_t (&draw)[4]) {
    const std::uint32_t least = raw_bits(Format::kWhole) - kMost;
    const std::uint32_t most = raw_bits(Format::kWhole) + kMost;
    std::uint32_t sum[4];
    AIACC_UNROLL
    for (int e = 0; e < 4; ++e) {
      // 2^23 and the upper half of the draw. Up to the sum with x all is exact.
      const float drawn = raw_float((draw[e] >> 16) + raw_bits(kExact));
      const float part = drawn * 0x1p-16F - 128.5F + 0x1p-17F;
      const std::uint32_t bits = raw_bits(x[e] + part + Format::kWhole);
      const std::uint32_t raised = bits > least ? bits : least;
      sum[e] = raised < most ? raised : most;
    }
    return gather_bytes<0>(sum);
  }

  AIACC_HOST_DEVICE static void values(std::uint32_t codes, float (&value)[4]) {
    constexpr std::uint32_t kSign = Format::kPacked ? 8 : 0x80;
    constexpr std::uint32_t kMask = Format::kPacked ? 0x0f0f0f0f : 0xffffffff;
    const std::uint32_t positive = (codes ^ kSign * 0x01010101) & kMask;
    AIACC_UNROLL
    for (std::uint32_t e = 0; e < 4; ++e) {
      value[e] = raw_float(choose_bytes(positive, raw_bits(kExact), 0x7650 | e)) -
                 (kExact + static_cast<float>(kSign));
    }
  }
};
template <>
struct CodePack<Int8Code> : IntegerCodePack<Int8Code> {};
template <>
struct CodePack<Int4Code> : IntegerCodePack<Int4Code> {};

template <>
struct CodePack<Float8Code> {
  /// Between the exponents of a code and of a float. 2^-kRebias times a number that has a code is a
  /// float, subnormal where the code is, whose bits from the 20th on are the code.
  static constexpr std::uint32_t kShift = 20;
  static constexpr std::uint32_t kDrawn = 0xfffff000;

  AIACC_HOST_DEVICE static std::uint32_t nearest(const float (&x)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint32_t codes;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}"
        : "=r"(codes)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
    return codes;
#else
    std::uint32_t code[4];
    AIACC_UNROLL
    for (int e = 0; e < 4; ++e) {
      code[e] = Float8Code::nearest(x[e]);
    }
    return gather_bytes<0>(code);
#endif
  }

  AIACC_HOST_DEVICE static std::uint32_t by_chance(const float (&x)[4],
                                                   const std::uint32_t (&draw)[4]) {
    constexpr std::uint32_t kSign = 0x80000000;
    constexpr std::uint32_t kMost = std::uint32_t{Float8Code::kMost} << kShift;
    std::uint32_t code[4];
    AIACC_UNROLL
    for (int e = 0; e < 4; ++e) {
      const std::uint32_t fixed = cut(x[e]);
      // The last 4 bits of what is added meet zeros.
      const std::uint32_t sum = (fixed < kMost ? fixed : kMost) * 16 + (draw[e] >> 8);
      code[e] = (raw_bits(x[e]) & kSign) | sum;
    }
    return gather_bytes<3>(code);
  }

  AIACC_HOST_DEVICE static void values(std::uint32_t codes, float (&value)[4]) {
    constexpr std::uint32_t kKept = 0x80000000 | 0x7f << kShift;
    AIACC_UNROLL
    for (std::uint32_t e = 0; e < 4; ++e) {
      const auto on_top = static_cast<std::int32_t>(codes << (24 - 8 * e));
      value[e] = product(raw_float(static_cast<std::uint32_t>(on_top >> 4) & kKept), 0x1p120F);
    }
  }

 private:
  /// The magnitude of x, with 20 bits below the last one of a code, and cut off there.
  AIACC_HOST_DEVICE static std::uint32_t cut(float x) {
#ifdef __CUDA_ARCH__
    return raw_bits(__fmul_rz(fabsf(x), 0x1p-120F));
#else
    const std::int32_t bits = Float8Code::magnitude_of(x);
    return static_cast<std::uint32_t>(
        bits < Float8Code::kLeastNormal
            ? static_cast<std::int32_t>(Float8Code::positive(bits) * 0x1p29F)
            : bits - Float8Code::kRebias);
#endif
  }
};

}  // namespace
}  // namespace aiacc
