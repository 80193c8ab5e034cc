#pragma once

// The body of the kernels of block_code.h, for block_code.cu and block_code.cc. It gives the bits
// of ../quantise.h.

#include <cstdint>
#include <cstring>

#include "csrc/kernels/gpu/block_code.h"
#include "csrc/kernels/gpu/warp.h"
#include "csrc/kernels/vector/block_formats.h"

namespace aiacc {
namespace {

constexpr std::uint32_t kFinite = 0x7f800000;  // bits of what is finite are less
constexpr std::uint32_t kRows = kBlockCodeTile / (4 * kWarpThreads);
constexpr std::uint32_t kRow = 4 * kWarpThreads;  ///< elements: a pack of 4 for each thread

struct alignas(16) Float4 {
  float at[4];
};

/// What a thread holds of a tile: of every row of 128 elements four neighbours.
struct CodeThread {
  Float4 t[kRows];
  std::uint32_t largest[kRows];
  std::uint32_t codes[kRows];  ///< a byte for each of four elements
  std::uint32_t of_block;      ///< largest magnitude, where a warp has a single block
};

template <class Format>
struct BlockCodeBody {
  AIACC_HOST_DEVICE static std::uint32_t bytes_of(std::uint32_t n) {
    return Format::kPacked ? (n + 1) / 2 : n;
  }
  AIACC_HOST_DEVICE static std::uint64_t offset_of(std::uint64_t block_number,
                                                   std::uint32_t block) {
    return block_number * (sizeof(float) + bytes_of(block));
  }
  AIACC_HOST_DEVICE static std::uint32_t magnitude(float value) {
    return raw_bits(value) & 0x7fffffff;
  }
  AIACC_HOST_DEVICE static float scale_of(std::uint32_t largest) {
    return largest < kFinite ? scale_for<Format>(largest) : raw_float(0x7fc00000);
  }
  AIACC_HOST_DEVICE static float decoded(std::uint32_t code, float scale) {
    return product(Format::value(code), scale);
  }

  /// The blocks of a tile: how many rows each has, and where on the wire the tile begins.
  struct Tile {
    std::uint64_t first;  ///< element
    std::uint32_t rows;
    unsigned char* wire;
  };
  AIACC_HOST_DEVICE static Tile tile_at(unsigned char* wire,
                                        std::uint64_t number,
                                        std::uint32_t block) {
    const std::uint64_t first = number * kBlockCodeTile;
    return {first, block / kRow, wire + offset_of(first / block, block)};
  }
  /// The block that row `row` of a tile belongs to.
  AIACC_HOST_DEVICE static unsigned char* block_of(const Tile& tile,
                                                   std::uint32_t row,
                                                   std::uint32_t block) {
    return tile.wire + offset_of(row / tile.rows, block);
  }

  /// Every row's largest magnitude becomes that of its block.
  AIACC_HOST_DEVICE static void merge_rows(std::uint32_t (&largest)[kRows], std::uint32_t rows) {
    AIACC_UNROLL
    for (std::uint32_t distance = 1; distance < kRows; distance *= 2) {
      if (distance < rows) {
        AIACC_UNROLL
        for (std::uint32_t row = 0; row < kRows; ++row) {
          if ((row & distance) == 0) {
            const std::uint32_t both = larger(largest[row], largest[row + distance]);
            largest[row] = both;
            largest[row + distance] = both;
          }
        }
      }
    }
  }

  template <class Warp>
  AIACC_HOST_DEVICE static void encode_tile(Warp& warp,
                                            const BlockEncoding& plan,
                                            std::uint64_t number) {
    const Tile tile = tile_at(plan.wire, number, plan.block);
    const auto* in = reinterpret_cast<const Float4*>(plan.in + tile.first);
    auto* residual =
        plan.residual == nullptr ? nullptr : reinterpret_cast<Float4*>(plan.residual + tile.first);
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        thread.t[row] = in[row * kWarpThreads + place];
      }
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        Float4& t = thread.t[row];
        Float4 rest = {};
        if (residual != nullptr) {
          rest = residual[row * kWarpThreads + place];
        }
        thread.largest[row] = 0;
        AIACC_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float fresh = product(plan.factor, t.at[e]);
          t.at[e] = residual != nullptr ? fresh + rest.at[e] : fresh;
          thread.largest[row] = larger(thread.largest[row], magnitude(t.at[e]));
        }
      }
    });
    AIACC_UNROLL
    for (std::uint32_t row = 0; row < kRows; ++row) {
      warp.largest([row](CodeThread& thread) -> std::uint32_t& { return thread.largest[row]; });
    }
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      merge_rows(thread.largest, tile.rows);
      float scale = 0.0F;
      float reciprocal = 0.0F;
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        const std::uint32_t within = row & (tile.rows - 1);
        if (within == 0) {
          scale = scale_of(thread.largest[row]);
          reciprocal = scale > 0.0F ? 1.0F / scale : 0.0F;
          if (place == 0) {
            *reinterpret_cast<float*>(block_of(tile, row, plan.block)) = scale;
          }
        }
        thread.codes[row] = 0;
        if (thread.largest[row] < kFinite) {
          thread.codes[row] =
              encode_pack(plan, tile, residual, row, place, thread.t[row], scale, reciprocal);
        }
      }
    });
    store_codes(warp, tile, plan.block);
  }

  /// Four codes of row `row`; writes what is left of the elements.
  AIACC_HOST_DEVICE static std::uint32_t encode_pack(const BlockEncoding& plan,
                                                     const Tile& tile,
                                                     Float4* residual,
                                                     std::uint32_t row,
                                                     std::uint32_t place,
                                                     const Float4& t,
                                                     float scale,
                                                     float reciprocal) {
    std::uint32_t code[4];
    if (plan.stochastic != 0) {
      const std::uint32_t within = row & (tile.rows - 1);
      const Draws draws(plan.seed, plan.first_index + tile.first + (row - within) * kRow);
      AIACC_UNROLL
      for (int e = 0; e < 4; ++e) {
        code[e] = Format::by_chance(product(t.at[e], reciprocal),
                                    draws[within * kRow + 4 * place + static_cast<unsigned>(e)]);
      }
    } else {
      AIACC_UNROLL
      for (int e = 0; e < 4; ++e) {
        code[e] = Format::nearest(product(t.at[e], reciprocal));
      }
    }
    if (residual != nullptr) {
      Float4 rest;
      AIACC_UNROLL
      for (int e = 0; e < 4; ++e) {
        rest.at[e] = t.at[e] - decoded(code[e], scale);
      }
      residual[row * kWarpThreads + place] = rest;
    }
    constexpr std::uint32_t kMask = Format::kPacked ? 0xf : 0xff;
    return (code[0] & kMask) | (code[1] & kMask) << 8 | (code[2] & kMask) << 16 |
           (code[3] & kMask) << 24;
  }

  template <class Warp>
  AIACC_HOST_DEVICE static void store_codes(Warp& warp, const Tile& tile, std::uint32_t block) {
    const auto word = [&](std::uint32_t row, std::uint32_t i) {
      return reinterpret_cast<std::uint32_t*>(block_of(tile, row, block) + sizeof(float)) + i;
    };
    if (!Format::kPacked) {
      warp.each([&](std::uint32_t place, CodeThread& thread) {
        AIACC_UNROLL
        for (std::uint32_t row = 0; row < kRows; ++row) {
          *word(row, (row & (tile.rows - 1)) * kWarpThreads + place) = thread.codes[row];
        }
      });
    } else if (tile.rows == 1) {
      // The second half of a block is in the other half of the warp.
      warp.each([&](std::uint32_t, CodeThread& thread) {
        AIACC_UNROLL
        for (std::uint32_t row = 0; row < kRows; ++row) {
          thread.largest[row] = thread.codes[row];
        }
      });
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        warp.rotate(kWarpThreads / 2,
                    [row](CodeThread& thread) -> std::uint32_t& { return thread.largest[row]; });
      }
      warp.each([&](std::uint32_t place, CodeThread& thread) {
        if (place < kWarpThreads / 2) {
          AIACC_UNROLL
          for (std::uint32_t row = 0; row < kRows; ++row) {
            *word(row, place) = thread.codes[row] | thread.largest[row] << 4;
          }
        }
      });
    } else {
      warp.each([&](std::uint32_t place, CodeThread& thread) {
        AIACC_UNROLL
        for (std::uint32_t half = 1; half < kRows; half *= 2) {
          if (2 * half == tile.rows) {
            AIACC_UNROLL
            for (std::uint32_t row = 0; row < kRows; ++row) {
              if ((row & half) == 0) {
                *word(row, (row & (half - 1)) * kWarpThreads + place) =
                    thread.codes[row] | thread.codes[row + half] << 4;
              }
            }
          }
        }
      });
    }
  }

  /// Any block, also a short one, at any address.
  template <class Warp>
  AIACC_HOST_DEVICE static void encode_block(Warp& warp,
                                             const BlockEncoding& plan,
                                             std::uint64_t number) {
    const std::uint64_t first = number * plan.block;
    const std::uint64_t left = plan.count - first;
    const auto n = static_cast<std::uint32_t>(left < plan.block ? left : plan.block);
    const float* in = plan.in + first;
    float* residual = plan.residual == nullptr ? nullptr : plan.residual + first;
    unsigned char* wire = plan.wire + offset_of(number, plan.block);
    const auto t_at = [&](std::uint32_t i) {
      const float fresh = product(plan.factor, in[i]);
      return residual != nullptr ? fresh + residual[i] : fresh;
    };
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      thread.of_block = 0;
      for (std::uint32_t i = place; i < n; i += kWarpThreads) {
        thread.of_block = larger(thread.of_block, magnitude(t_at(i)));
      }
    });
    warp.largest([](CodeThread& thread) -> std::uint32_t& { return thread.of_block; });
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      const float scale = scale_of(thread.of_block);
      const float reciprocal = scale > 0.0F ? 1.0F / scale : 0.0F;
      const bool finite = thread.of_block < kFinite;
      const Draws draws(plan.seed, plan.first_index + first);
      const auto code_of = [&](std::uint32_t i) -> std::uint32_t {
        if (!finite) {
          return 0;
        }
        const float t = t_at(i);
        const float x = product(t, reciprocal);
        const std::uint32_t code =
            plan.stochastic != 0 ? Format::by_chance(x, draws[i]) : Format::nearest(x);
        if (residual != nullptr) {
          residual[i] = t - decoded(code, scale);
        }
        return code;
      };
      if (place == 0) {
        const std::uint32_t bits = raw_bits(scale);
        for (int byte = 0; byte < 4; ++byte) {
          wire[byte] = static_cast<unsigned char>(bits >> (8 * byte));
        }
      }
      unsigned char* codes = wire + sizeof(float);
      const std::uint32_t bytes = bytes_of(n);
      for (std::uint32_t i = place; i < bytes; i += kWarpThreads) {
        std::uint32_t code = code_of(i);
        if (Format::kPacked) {
          code &= 0xf;
          code |= bytes + i < n ? (code_of(bytes + i) & 0xf) << 4 : 0;
        }
        codes[i] = static_cast<unsigned char>(code);
      }
    });
  }

  AIACC_HOST_DEVICE static void put(const BlockDecoding& plan, float& out, float value) {
    out = plan.adds != 0 ? out + value : product(plan.factor, value);
  }

  /// The codes of row `row` as bytes; of a packed block the low four bits of each count.
  AIACC_HOST_DEVICE static std::uint32_t load_codes(const Tile& tile,
                                                    std::uint32_t block,
                                                    std::uint32_t row,
                                                    std::uint32_t place) {
    const auto* words =
        reinterpret_cast<const std::uint32_t*>(block_of(tile, row, block) + sizeof(float));
    const std::uint32_t within = (row & (tile.rows - 1)) * kWarpThreads + place;
    if (!Format::kPacked) {
      return words[within];
    }
    const std::uint32_t half = tile.rows * kWarpThreads / 2;
    return within < half ? words[within] : words[within - half] >> 4;
  }

  template <class Warp>
  AIACC_HOST_DEVICE static void decode_tile(Warp& warp,
                                            const BlockDecoding& plan,
                                            std::uint64_t number) {
    const Tile tile = tile_at(const_cast<unsigned char*>(plan.wire), number, plan.block);
    auto* out = reinterpret_cast<Float4*>(plan.out + tile.first);
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        thread.codes[row] = load_codes(tile, plan.block, row, place);
        if (plan.adds != 0) {
          thread.t[row] = out[row * kWarpThreads + place];
        }
      }
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        const float scale = *reinterpret_cast<const float*>(block_of(tile, row, plan.block));
        Float4 result = thread.t[row];
        AIACC_UNROLL
        for (int e = 0; e < 4; ++e) {
          const auto code = static_cast<std::uint8_t>(thread.codes[row] >> (8 * e));
          put(plan, result.at[e], decoded(Format::extend(code), scale));
        }
        out[row * kWarpThreads + place] = result;
      }
    });
  }

  template <class Warp>
  AIACC_HOST_DEVICE static void decode_block(Warp& warp,
                                             const BlockDecoding& plan,
                                             std::uint64_t number) {
    const std::uint64_t first = number * plan.block;
    const std::uint64_t left = plan.count - first;
    const auto n = static_cast<std::uint32_t>(left < plan.block ? left : plan.block);
    const unsigned char* wire = plan.wire + offset_of(number, plan.block);
    warp.each([&](std::uint32_t place, CodeThread&) {
      std::uint32_t bits = 0;
      for (int byte = 0; byte < 4; ++byte) {
        bits |= static_cast<std::uint32_t>(wire[byte]) << (8 * byte);
      }
      const float scale = raw_float(bits);
      const unsigned char* codes = wire + sizeof(float);
      const std::uint32_t bytes = bytes_of(n);
      for (std::uint32_t i = place; i < n; i += kWarpThreads) {
        std::uint8_t code = codes[i < bytes ? i : i - bytes];
        code = i < bytes ? code : static_cast<std::uint8_t>(code >> 4);
        put(plan, plan.out[first + i], decoded(Format::extend(code), scale));
      }
    });
  }

  /// What warp `number` of `warps` does of everything.
  template <class Warp>
  AIACC_HOST_DEVICE static void encode_share(Warp& warp,
                                             const BlockEncoding& plan,
                                             std::uint32_t number,
                                             std::uint32_t warps) {
    const std::uint64_t items = work_items(plan);
    const std::uint64_t blocks_before = plan.tiles * (kBlockCodeTile / plan.block);
    for (std::uint64_t item = number; item < items; item += warps) {
      if (item < plan.tiles) {
        encode_tile(warp, plan, item);
      } else {
        encode_block(warp, plan, blocks_before + (item - plan.tiles));
      }
    }
  }
  template <class Warp>
  AIACC_HOST_DEVICE static void decode_share(Warp& warp,
                                             const BlockDecoding& plan,
                                             std::uint32_t number,
                                             std::uint32_t warps) {
    const std::uint64_t items = work_items(plan);
    const std::uint64_t blocks_before = plan.tiles * (kBlockCodeTile / plan.block);
    for (std::uint64_t item = number; item < items; item += warps) {
      if (item < plan.tiles) {
        decode_tile(warp, plan, item);
      } else {
        decode_block(warp, plan, blocks_before + (item - plan.tiles));
      }
    }
  }
};

}  // namespace
}  // namespace aiacc

/// Calls X(name, format) for every format, in the order of BlockFormat.
#define AIACC_BLOCK_CODES(X) X(int8, Int8Code) X(int4, Int4Code) X(float8_e4m3, Float8Code)
