#pragma once

// The kernels of ../quantise.h, as templates for the files that compile kernels.h: the same rules.

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/quantise.h"
#include "csrc/kernels/vector/block_formats.h"
#include "csrc/kernels/vector/kernels.h"

namespace aiacc {
namespace {

using Byte = std::uint8_t;
constexpr std::size_t kLongestBlock = 1024;
constexpr std::size_t kLineFloats = 16;  ///< in a line of the cache

template <class Format>
struct BlockKernels {
  static std::size_t bytes_of(std::size_t n) { return Format::kPacked ? (n + 1) / 2 : n; }

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
      const std::uint32_t code = kByChance ? Format::by_chance(x, draws[i]) : Format::nearest(x);
      codes[i] = static_cast<Byte>(code);
      if (kKeeps) {
        residual[i] = t[i] - Format::value(code) * scale;
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
    // While codes are computed, nothing else asks for the next blocks.
    for (std::size_t i = 0; i < n; i += kLineFloats) {
      __builtin_prefetch(in + kLongestBlock + i);
      __builtin_prefetch(residual + kLongestBlock + i);
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
      const float scale = largest < kInfinity ? scale_for<Format>(largest) : raw_float(0x7fc00000);
      __builtin_memcpy(wire, &scale, sizeof scale);
      wire += sizeof scale;
      if (largest >= kInfinity) {
        __builtin_memset(wire, 0, bytes_of(n));
      } else {
        Byte* codes = Format::kPacked ? unpacked : wire;
        encode_block(codes,
                     t,
                     rest,
                     static_cast<std::uint32_t>(n),
                     scale,
                     rounding.stochastic,
                     Draws(rounding.seed, first_index + at));
        if (Format::kPacked) {
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
    if (!Format::kPacked) {
#pragma GCC ivdep
      for (std::size_t i = 0; i < n; ++i) {
        put(out[i], Format::value(Format::extend(codes[i])) * scale);
      }
      return;
    }
    const std::size_t low = (n + 1) / 2;
    const std::size_t high = n / 2;
#pragma GCC ivdep
    for (std::size_t i = 0; i < low; ++i) {
      put(out[i], Format::value(Format::extend(codes[i])) * scale);
    }
#pragma GCC ivdep
    for (std::size_t i = 0; i < high; ++i) {
      put(out[low + i], Format::value(Format::extend(static_cast<Byte>(codes[i] >> 4))) * scale);
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
