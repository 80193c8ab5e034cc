#pragma once

// The body of the kernels of block_code.h that encode. It gives the bits of ../quantise.h.

#include <cstdint>

#include "csrc/kernels/gpu/block_code.h"
#include "csrc/kernels/gpu/code_pack.h"
#include "csrc/kernels/gpu/code_tile.h"
#include "csrc/kernels/gpu/warp.h"
#include "csrc/kernels/vector/block_formats.h"

namespace aiacc {
namespace {

constexpr std::uint32_t kFinite = 0x7f800000;  // bits of what is finite are less

template <class Format>
struct BlockEncodeBody {
  using Tile = CodeTile<Format>;
  using Rows = typename Tile::Rows;

  AIACC_HOST_DEVICE static std::uint32_t magnitude(float value) {
    return raw_bits(value) & 0x7fffffff;
  }
  AIACC_HOST_DEVICE static float scale_of(std::uint32_t largest) {
    return largest < kFinite ? scale_for<Format>(largest) : raw_float(0x7fc00000);
  }
  AIACC_HOST_DEVICE static float reciprocal_of(float scale) {
    return scale > 0.0F ? 1.0F / scale : 0.0F;
  }

  /// The largest magnitude in the block of row `place` modulo kRows.
  AIACC_HOST_DEVICE static std::uint32_t largest_of(const std::uint32_t (&of_row)[kRows],
                                                    const Rows& rows,
                                                    std::uint32_t place) {
    std::uint32_t largest[kRows];
    AIACC_UNROLL
    for (std::uint32_t row = 0; row < kRows; ++row) {
      largest[row] = of_row[row];
    }
    AIACC_UNROLL
    for (std::uint32_t distance = 1; distance < kRows; distance *= 2) {
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; row += 2 * distance) {
        const std::uint32_t other = largest[row + distance];
        const std::uint32_t mine = (place & distance) == 0 ? largest[row] : other;
        largest[row] = distance < rows.in_block() ? larger(largest[row], other) : mine;
      }
    }
    return largest[0];
  }

  /// Returns false, and does nothing, if the tile has something that is not finite.
  template <bool kByChance, bool kKeeps, class Warp>
  AIACC_HOST_DEVICE static bool encode_tile(Warp& warp,
                                            const BlockEncoding& plan,
                                            const Rows& rows,
                                            unsigned char* wire,
                                            std::uint64_t number,
                                            const Draws& draws) {
    const auto* in = reinterpret_cast<const Float4*>(plan.in + number * kBlockCodeTile);
    auto* residual =
        kKeeps ? reinterpret_cast<Float4*>(plan.residual + number * kBlockCodeTile) : nullptr;
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        thread.t[row] = in[row * kWarpThreads + place];
      }
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        Float4& t = thread.t[row];
        Float4 rest = {};
        if constexpr (kKeeps) {
          rest = residual[row * kWarpThreads + place];
        }
        thread.largest[row] = 0;
        AIACC_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float fresh = product(plan.factor, t.at[e]);
          t.at[e] = kKeeps ? fresh + rest.at[e] : fresh;
          thread.largest[row] = larger_magnitude(thread.largest[row], t.at[e]);
        }
      }
    });
    AIACC_UNROLL
    // NOLINTNEXTLINE(modernize-loop-convert)
    for (std::uint32_t row = 0; row < kRows; ++row) {
      warp.largest([row](CodeThread& thread) -> std::uint32_t& { return thread.largest[row]; });
    }
    // The threads share the divisions.
    bool finite = true;
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      std::uint32_t of_tile = 0;
      AIACC_UNROLL
      // NOLINTNEXTLINE(modernize-loop-convert)
      for (std::uint32_t row = 0; row < kRows; ++row) {
        of_tile = larger(of_tile, thread.largest[row]);
      }
      finite = of_tile < kFinite;
      thread.scale = scale_for<Format>(largest_of(thread.largest, rows, place));
      thread.reciprocal = reciprocal_of(thread.scale);
    });
    if (!finite) {
      return false;
    }
    AIACC_UNROLL
    for (std::uint32_t row = 0; row < kRows; ++row) {
      warp.spread(
          row,
          [](CodeThread& thread) { return thread.reciprocal; },
          [row](CodeThread& thread) -> float& { return thread.reciprocals[row]; });
      if constexpr (kKeeps) {
        Tile::spread_scale(warp, row);
      }
    }
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      if (place < kRows && (place & (rows.in_block() - 1)) == 0) {
        *reinterpret_cast<float*>(wire + rows.place_of_scale(place)) = thread.scale;
      }
      const Draws mine = draws.from(4 * place);
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        thread.codes[row] =
            encode_pack<kByChance>(thread.t[row], thread.reciprocals[row], mine, row * kRow);
        if constexpr (kKeeps) {
          float value[4];
          CodePack<Format>::values(thread.codes[row], value);
          Float4 rest;
          AIACC_UNROLL
          for (int e = 0; e < 4; ++e) {
            rest.at[e] = thread.t[row].at[e] - product(value[e], thread.scales[row]);
          }
          residual[row * kWarpThreads + place] = rest;
        }
      }
    });
    store_codes(warp, rows, wire);
    return true;
  }

  /// Four codes, of which the first is that of element `i` of the draws.
  template <bool kByChance>
  AIACC_HOST_DEVICE static std::uint32_t encode_pack(const Float4& t,
                                                     float reciprocal,
                                                     const Draws& draws,
                                                     std::uint32_t i) {
    float x[4];
    AIACC_UNROLL
    for (int e = 0; e < 4; ++e) {
      x[e] = product(t.at[e], reciprocal);
    }
    if constexpr (kByChance) {
      std::uint32_t draw[4];
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < 4; ++e) {
        draw[e] = draws.template bits<CodePack<Format>::kDrawn>(i + e);
      }
      return CodePack<Format>::by_chance(x, draw);
    }
    return CodePack<Format>::nearest(x);
  }

  AIACC_HOST_DEVICE static std::uint32_t packed(std::uint32_t low, std::uint32_t high) {
    return (low & 0x0f0f0f0f) | (high << 4 & 0xf0f0f0f0);
  }

  template <class Warp>
  AIACC_HOST_DEVICE static void store_codes(Warp& warp, const Rows& rows, unsigned char* wire) {
    if (!Format::kPacked) {
      warp.each([&](std::uint32_t place, CodeThread& thread) {
        auto* words = reinterpret_cast<std::uint32_t*>(wire) + place;
        Tile::visit_words(rows, [&](std::uint32_t row, std::uint32_t, std::uint32_t word) {
          words[word] = thread.codes[row];
        });
      });
    } else if (rows.shift == 0) {
      // The second half of a block is in the other half of the warp.
      warp.each([&](std::uint32_t, CodeThread& thread) {
        AIACC_UNROLL
        for (std::uint32_t row = 0; row < kRows; ++row) {
          thread.largest[row] = thread.codes[row];
        }
      });
      AIACC_UNROLL
      // NOLINTNEXTLINE(modernize-loop-convert)
      for (std::uint32_t row = 0; row < kRows; ++row) {
        warp.rotate(kWarpThreads / 2,
                    [row](CodeThread& thread) -> std::uint32_t& { return thread.largest[row]; });
      }
      warp.each([&](std::uint32_t place, CodeThread& thread) {
        if (place < kWarpThreads / 2) {
          AIACC_UNROLL
          for (std::uint32_t row = 0; row < kRows; ++row) {
            auto* words = reinterpret_cast<std::uint32_t*>(
                wire + row * (sizeof(float) + Tile::bytes_of(kRow)) + sizeof(float));
            words[place] = packed(thread.codes[row], thread.largest[row]);
          }
        }
      });
    } else {
      warp.each([&](std::uint32_t place, CodeThread& thread) {
        auto* words = reinterpret_cast<std::uint32_t*>(wire) + place;
        Tile::visit_words(rows, [&](std::uint32_t low, std::uint32_t high, std::uint32_t word) {
          words[word] = packed(thread.codes[low], thread.codes[high]);
        });
      });
    }
  }

  /// Any block, also a short one, at any address.
  template <bool kByChance, bool kKeeps, class Warp>
  AIACC_HOST_DEVICE static void encode_block(Warp& warp,
                                             const BlockEncoding& plan,
                                             std::uint64_t number) {
    const std::uint64_t first = number * plan.block;
    const std::uint64_t left = plan.count - first;
    const auto n = static_cast<std::uint32_t>(left < plan.block ? left : plan.block);
    const float* in = plan.in + first;
    float* residual = kKeeps ? plan.residual + first : nullptr;
    unsigned char* wire = plan.wire + Tile::offset_of(number, plan.block);
    const auto t_at = [&](std::uint32_t i) {
      const float fresh = product(plan.factor, in[i]);
      return kKeeps ? fresh + residual[i] : fresh;
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
      const float reciprocal = reciprocal_of(scale);
      const bool finite = thread.of_block < kFinite;
      const Draws draws(plan.seed, plan.first_index + first);
      const auto code_of = [&](std::uint32_t i) -> std::uint32_t {
        if (!finite) {
          return 0;
        }
        const float t = t_at(i);
        const float x = product(t, reciprocal);
        const std::uint32_t code = kByChance ? Format::by_chance(x, draws[i]) : Format::nearest(x);
        if (kKeeps) {
          residual[i] = t - Tile::decoded(code, scale);
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
      const std::uint32_t bytes = Tile::bytes_of(n);
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

  template <bool kByChance, bool kKeeps, class Warp>
  AIACC_HOST_DEVICE static void encode_items(Warp& warp,
                                             const BlockEncoding& plan,
                                             std::uint32_t number,
                                             std::uint32_t warps) {
    const Rows rows(plan.block);
    const std::uint32_t blocks_of_tile = kRows >> rows.shift;
    const std::uint64_t items = work_items(plan);
    auto upper = static_cast<std::uint32_t>(plan.first_index >> 32);
    DrawKeys keys(plan.seed, upper);
    unsigned char* wire = plan.wire + std::uint64_t{number} * rows.bytes();
    const std::uint64_t step = std::uint64_t{warps} * rows.bytes();
    for (std::uint64_t item = number; item < items; item += warps, wire += step) {
      std::uint64_t block = plan.tiles * blocks_of_tile + (item - plan.tiles);
      std::uint32_t blocks = 1;
      if (item < plan.tiles) {
        const std::uint64_t index = plan.first_index + item * kBlockCodeTile;
        const std::uint64_t last = index + (kBlockCodeTile - 1);
        if (kByChance && static_cast<std::uint32_t>(last >> 32) != upper) {
          upper = static_cast<std::uint32_t>(last >> 32);
          keys = DrawKeys(plan.seed, upper);
        }
        // Blocks on either side of a multiple of 2^32 do not share keys.
        const bool shares = !kByChance || index >> 32 == upper;
        const Draws draws(keys, static_cast<std::uint32_t>(index));
        if (shares && encode_tile<kByChance, kKeeps>(warp, plan, rows, wire, item, draws)) {
          continue;
        }
        block = item * blocks_of_tile;
        blocks = blocks_of_tile;
      }
      for (const std::uint64_t end = block + blocks; block < end; ++block) {
        encode_block<kByChance, kKeeps>(warp, plan, block);
      }
    }
  }

  /// What warp `number` of `warps` does of everything.
  template <class Warp>
  AIACC_HOST_DEVICE static void share(Warp& warp,
                                      const BlockEncoding& plan,
                                      std::uint32_t number,
                                      std::uint32_t warps) {
    if (plan.residual == nullptr) {
      return plan.stochastic != 0 ? encode_items<true, false>(warp, plan, number, warps)
                                  : encode_items<false, false>(warp, plan, number, warps);
    }
    return plan.stochastic != 0 ? encode_items<true, true>(warp, plan, number, warps)
                                : encode_items<false, true>(warp, plan, number, warps);
  }
};

}  // namespace
}  // namespace aiacc
