#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/float8.h"
#include "csrc/kernels/quantise.h"

namespace aiacc {

// The block codes of quantise.h in the plainest way, for references.

using Bytes = std::vector<unsigned char>;

inline const std::vector<BlockFormat>& block_formats() {
  static const std::vector<BlockFormat> formats = {
      BlockFormat::kInt8, BlockFormat::kInt4, BlockFormat::kFloat8E4M3};
  return formats;
}

inline const char* name_of(BlockFormat format) {
  return format == BlockFormat::kInt8   ? "int8"
         : format == BlockFormat::kInt4 ? "int4"
                                        : "float8_e4m3";
}

inline float largest_of(BlockFormat format) {
  return format == BlockFormat::kInt8 ? 127.0F : format == BlockFormat::kInt4 ? 7.0F : 448.0F;
}

/// Of numbers that are finite: rounded up to 17 significant bits.
inline float scale_for(float largest, BlockFormat format) {
  if (largest == 0) {
    return 0;
  }
  const auto rounded = [](float scale, double (*to)(double)) {
    int exponent;
    const double fraction = std::frexp(static_cast<double>(scale), &exponent);
    return static_cast<float>(std::ldexp(to(std::ldexp(fraction, 17)), exponent - 17));
  };
  const float most = rounded(FLT_MAX / largest_of(format), std::floor);
  const float scale = rounded(largest / largest_of(format), std::ceil);
  return std::max(std::min(scale, most), FLT_MIN);
}

inline std::uint8_t nearest_code(float x, BlockFormat format) {
  return format == BlockFormat::kFloat8E4M3
             ? narrow_float8<Float8E4M3>(x).bits
             : static_cast<std::uint8_t>(static_cast<int>(std::nearbyint(x)));
}

inline float value_of(std::uint8_t code, BlockFormat format) {
  switch (format) {
    case BlockFormat::kInt8:
      return static_cast<float>(static_cast<std::int8_t>(code));
    case BlockFormat::kInt4:
      return static_cast<float>((code & 0xf) < 8 ? code & 0xf : (code & 0xf) - 16);
    case BlockFormat::kFloat8E4M3:
      return widen_float8(Float8E4M3{code});
  }
  return NAN;
}

/// How far apart the numbers of the format are at |x|.
inline double step_at(double x, BlockFormat format) {
  if (format != BlockFormat::kFloat8E4M3) {
    return 1.0;
  }
  return x < 0x1p-6 ? 0x1p-9 : std::ldexp(1.0, std::min(std::ilogb(x), 8) - 3);
}

inline void append(Bytes& wire, float scale) {
  std::uint32_t bits;
  std::memcpy(&bits, &scale, sizeof bits);
  bits = std::isnan(scale) ? 0x7fc00000 : bits;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&bits);
  wire.insert(wire.end(), bytes, bytes + sizeof bits);
}

inline void append_codes(Bytes& wire, const std::vector<std::uint8_t>& codes, BlockFormat format) {
  if (format != BlockFormat::kInt4) {
    wire.insert(wire.end(), codes.begin(), codes.end());
    return;
  }
  const std::size_t low = (codes.size() + 1) / 2;
  for (std::size_t i = 0; i < low; ++i) {
    const int high = low + i < codes.size() ? codes[low + i] & 0xf : 0;
    wire.push_back(static_cast<unsigned char>((codes[i] & 0xf) | high << 4));
  }
}

/// The scale of the block with element `index`.
inline float scale_of(const Bytes& wire, std::size_t index, const BlockCode& code) {
  float scale;
  std::memcpy(&scale, wire.data() + encoded_bytes(index / code.block * code.block, code), 4);
  return scale;
}

/// Normal, each block of 128 of another size.
inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = std::ldexp(normal(random), static_cast<int>(i / 128 % 9) - 4);
  }
  return values;
}

}  // namespace aiacc
