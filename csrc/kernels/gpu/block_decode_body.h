#pragma once

// The body of the kernels of block_code.h that decode. It gives the bits of ../quantise.h.

#include <cstdint>

#include "csrc/kernels/gpu/block_code.h"
#include "csrc/kernels/gpu/code_pack.h"
#include "csrc/kernels/gpu/code_tile.h"
#include "csrc/kernels/gpu/warp.h"
#include "csrc/kernels/vector/block_formats.h"

namespace aiacc {
namespace {

template <class Format>
struct BlockDecodeBody {
  using Tile = CodeTile<Format>;
  using Rows = typename Tile::Rows;

  template <bool kAdds>
  AIACC_HOST_DEVICE static void put(float factor, float& out, float value) {
    out = kAdds ? out + value : product(factor, value);
  }

  /// Reads the codes of all rows as bytes; of a packed format the lower four bits of each count.
  AIACC_HOST_DEVICE static void load_codes(const Rows& rows,
                                           const unsigned char* wire,
                                           std::uint32_t place,
                                           std::uint32_t (&codes)[kRows]) {
    if (Format::kPacked && rows.shift == 0) {
      const std::uint32_t bits = place < kWarpThreads / 2 ? 0 : 4;
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        const auto* words = reinterpret_cast<const std::uint32_t*>(
            wire + row * (sizeof(float) + Tile::bytes_of(kRow)) + sizeof(float));
        codes[row] = words[place % (kWarpThreads / 2)] >> bits;
      }
      return;
    }
    const auto* words = reinterpret_cast<const std::uint32_t*>(wire) + place;
    Tile::visit_words(rows, [&](std::uint32_t low, std::uint32_t high, std::uint32_t word) {
      codes[low] = words[word];
      if (Format::kPacked) {
        codes[high] = codes[low] >> 4;
      }
    });
  }

  template <bool kAdds, class Warp>
  AIACC_HOST_DEVICE static void decode_tile(Warp& warp,
                                            const BlockDecoding& plan,
                                            const Rows& rows,
                                            const unsigned char* wire,
                                            std::uint64_t number) {
    auto* out = reinterpret_cast<Float4*>(plan.out + number * kBlockCodeTile);
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      thread.scale = *reinterpret_cast<const float*>(wire + rows.place_of_scale(place % kRows));
      load_codes(rows, wire, place, thread.codes);
      if constexpr (kAdds) {
        AIACC_UNROLL
        for (std::uint32_t row = 0; row < kRows; ++row) {
          thread.t[row] = out[row * kWarpThreads + place];
        }
      }
    });
    AIACC_UNROLL
    for (std::uint32_t row = 0; row < kRows; ++row) {
      Tile::spread_scale(warp, row);
    }
    warp.each([&](std::uint32_t place, CodeThread& thread) {
      AIACC_UNROLL
      for (std::uint32_t row = 0; row < kRows; ++row) {
        float value[4];
        CodePack<Format>::values(thread.codes[row], value);
        Float4 result = {};
        if constexpr (kAdds) {
          result = thread.t[row];
        }
        AIACC_UNROLL
        for (int e = 0; e < 4; ++e) {
          put<kAdds>(plan.factor, result.at[e], product(value[e], thread.scales[row]));
        }
        out[row * kWarpThreads + place] = result;
      }
    });
  }

  template <bool kAdds, class Warp>
  AIACC_HOST_DEVICE static void decode_block(Warp& warp,
                                             const BlockDecoding& plan,
                                             std::uint64_t number) {
    const std::uint64_t first = number * plan.block;
    const std::uint64_t left = plan.count - first;
    const auto n = static_cast<std::uint32_t>(left < plan.block ? left : plan.block);
    const unsigned char* wire = plan.wire + Tile::offset_of(number, plan.block);
    warp.each([&](std::uint32_t place, CodeThread&) {
      std::uint32_t bits = 0;
      for (int byte = 0; byte < 4; ++byte) {
        bits |= static_cast<std::uint32_t>(wire[byte]) << (8 * byte);
      }
      const float scale = raw_float(bits);
      const unsigned char* codes = wire + sizeof(float);
      const std::uint32_t bytes = Tile::bytes_of(n);
      for (std::uint32_t i = place; i < n; i += kWarpThreads) {
        std::uint8_t code = codes[i < bytes ? i : i - bytes];
        code = i < bytes ? code : static_cast<std::uint8_t>(code >> 4);
        put<kAdds>(plan.factor, plan.out[first + i], Tile::decoded(Format::extend(code), scale));
      }
    });
  }

  template <bool kAdds, class Warp>
  AIACC_HOST_DEVICE static void decode_items(Warp& warp,
                                             const BlockDecoding& plan,
                                             std::uint32_t number,
                                             std::uint32_t warps) {
    const Rows rows(plan.block);
    const std::uint64_t items = work_items(plan);
    const unsigned char* wire = plan.wire + std::uint64_t{number} * rows.bytes();
    const std::uint64_t step = std::uint64_t{warps} * rows.bytes();
    for (std::uint64_t item = number; item < items; item += warps, wire += step) {
      if (item < plan.tiles) {
        decode_tile<kAdds>(warp, plan, rows, wire, item);
      } else {
        decode_block<kAdds>(warp, plan, plan.tiles * (kRows >> rows.shift) + (item - plan.tiles));
      }
    }
  }

  /// What warp `number` of `warps` does of everything.
  template <class Warp>
  AIACC_HOST_DEVICE static void share(Warp& warp,
                                      const BlockDecoding& plan,
                                      std::uint32_t number,
                                      std::uint32_t warps) {
    return plan.adds != 0 ? decode_items<true>(warp, plan, number, warps)
                          : decode_items<false>(warp, plan, number, warps);
  }
};

}  // namespace
}  // namespace aiacc
