#pragma once

// Tiles of block_code.h: what a warp has of one, and where it is on the wire. For the bodies of the
// kernels.

#include <cstdint>

#include "csrc/kernels/gpu/block_code.h"
#include "csrc/kernels/host_device.h"
#include "csrc/kernels/vector/block_formats.h"

namespace aiacc {
namespace {

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
  float scales[kRows];
  float reciprocals[kRows];
  float scale;  ///< of the block of row `number modulo kRows`
  float reciprocal;
  std::uint32_t of_block;  ///< largest magnitude, where a warp has a single block
};

template <class Format>
struct CodeTile {
  AIACC_HOST_DEVICE static std::uint32_t bytes_of(std::uint32_t n) {
    return Format::kPacked ? (n + 1) / 2 : n;
  }
  AIACC_HOST_DEVICE static std::uint64_t offset_of(std::uint64_t block_number,
                                                   std::uint32_t block) {
    return block_number * (sizeof(float) + bytes_of(block));
  }
  AIACC_HOST_DEVICE static float decoded(std::uint32_t code, float scale) {
    return product(Format::value(code), scale);
  }

  /// How the rows of a tile are blocks.
  struct Rows {
    AIACC_HOST_DEVICE explicit Rows(std::uint32_t block)
        : shift((block > kRow ? 1 : 0) + (block > 2 * kRow ? 1 : 0) + (block > 4 * kRow ? 1 : 0)) {}
    AIACC_HOST_DEVICE std::uint32_t in_block() const { return 1U << shift; }
    /// The block, in the tile, that a row belongs to.
    AIACC_HOST_DEVICE std::uint32_t block_of(std::uint32_t row) const { return row >> shift; }
    /// Bytes of a tile on the wire.
    AIACC_HOST_DEVICE std::uint32_t bytes() const {
      return bytes_of(kBlockCodeTile) + sizeof(float) * (kRows >> shift);
    }
    /// Where on the wire, from where the tile begins, the scale of a row's block is.
    AIACC_HOST_DEVICE std::uint32_t place_of_scale(std::uint32_t row) const {
      const std::uint32_t block = block_of(row);
      return (block << shift) * bytes_of(kRow) + sizeof(float) * block;
    }
    std::uint32_t shift;
  };
  static_assert(kRows == 8, "Rows knows of so many");

  /// Calls visit(row, row, word) for every row: its codes are the 32 words of the tile on the wire
  /// from that one on. Of a packed format visit(row, other row, word) with what is in the lower and
  /// in the upper bits of such words; blocks of a single row have no such words.
  template <class Visit>
  AIACC_HOST_DEVICE static void visit_words(const Rows& rows, Visit visit) {
    if (rows.shift == 3) {
      visit_words_of<3>(visit);
    } else if (rows.shift == 2) {
      visit_words_of<2>(visit);
    } else if (rows.shift == 1) {
      visit_words_of<1>(visit);
    } else if constexpr (!Format::kPacked) {
      visit_words_of<0>(visit);
    }
  }
  template <std::uint32_t kShift, class Visit>
  AIACC_HOST_DEVICE static void visit_words_of(Visit visit) {
    constexpr std::uint32_t kApart = Format::kPacked ? (1U << kShift) / 2 : 0;
    AIACC_UNROLL
    for (std::uint32_t row = 0; row < kRows; ++row) {
      if ((row & kApart) == 0) {
        const std::uint32_t block = row >> kShift;
        const std::uint32_t before = row - block * kApart;
        visit(row, row + kApart, kWarpThreads * before + block + 1);
      }
    }
  }

  template <class Warp>
  AIACC_HOST_DEVICE static void spread_scale(Warp& warp, std::uint32_t row) {
    warp.spread(
        row,
        [](CodeThread& thread) { return thread.scale; },
        [row](CodeThread& thread) -> float& { return thread.scales[row]; });
  }
};

}  // namespace
}  // namespace aiacc
