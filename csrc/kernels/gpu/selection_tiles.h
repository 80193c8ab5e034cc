#pragma once

// What a thread has of a tile. Rows and packs of elements are those of a warp's 1024 neighbours, so
// that the order of warps, rows and threads is that of the indices.

#include <cstdint>
#include <cstring>

#include "csrc/kernels/gpu/grid.h"
#include "csrc/kernels/gpu/selection.h"
#include "csrc/kernels/vector/block_formats.h"

namespace aiacc {
namespace {

constexpr std::uint32_t kNotFinite = 0x7f800000;  ///< bits of the least magnitude that is not
constexpr std::uint32_t kWarps = kSelectThreads / kWarpThreads;
constexpr std::uint32_t kSelectRows = 8;
constexpr std::uint32_t kSelectRow = 4 * kWarpThreads;
static_assert(kWarps * kSelectRows * kSelectRow == kSelectTile, "a tile is eight rows a warp");

struct SelectThread {
  float t[kSelectRows * 4];
  std::uint32_t valid;  ///< a bit for each of them
  std::uint32_t largest;
  /// Counts of what is picked, a byte for each row: in the threads before, in the whole warp.
  std::uint64_t before[2];
  std::uint64_t total[2];
  std::uint32_t picked[2];  ///< a bit for each element
  std::uint32_t sum;
  std::uint32_t other_sum;
};

struct SelectShared {
  std::uint32_t bins[kSelectBins];
  std::uint32_t of_warp[2][kWarps];
  std::uint32_t base;
  std::uint32_t fits;
  double sums[kSelectThreads];
};

AIACC_HOST_DEVICE inline std::uint32_t magnitude_of(float value) {
  return raw_bits(value) & 0x7fffffff;
}

/// The bytes of a packed count, added up.
AIACC_HOST_DEVICE inline std::uint32_t sum_of_rows(std::uint64_t counts) {
  std::uint32_t sum = 0;
  AIACC_UNROLL
  for (std::uint32_t row = 0; row < kSelectRows; ++row) {
    sum += static_cast<std::uint32_t>(counts >> (8 * row)) & 0xff;
  }
  return sum;
}

/// How many bits of each group of four are set, a byte for each group.
AIACC_HOST_DEVICE inline std::uint64_t counts_of_rows(std::uint32_t bits) {
  bits -= (bits >> 1) & 0x55555555;
  bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333);  // a count in every four bits
  std::uint64_t wide = bits;
  wide = (wide | wide << 16) & 0x0000ffff0000ffff;
  wide = (wide | wide << 8) & 0x00ff00ff00ff00ff;
  return (wide | wide << 4) & 0x0f0f0f0f0f0f0f0f;
}

/// Index of the first element of a thread's row.
AIACC_HOST_DEVICE inline std::uint32_t index_of(std::uint32_t tile,
                                                std::uint32_t thread,
                                                std::uint32_t row) {
  return tile * kSelectTile + thread / kWarpThreads * (kSelectRows * kSelectRow) +
         row * kSelectRow + thread % kWarpThreads * 4;
}

struct alignas(16) SelectPack {
  float at[4];
};

/// A thread's part of a tile: t = factor * in + residual, and the largest magnitude so far.
AIACC_HOST_DEVICE inline void load_tile(const SelectPlan& p,
                                        std::uint32_t tile,
                                        std::uint32_t number,
                                        SelectThread& thread) {
  const bool full = p.is_aligned != 0 && p.count - tile * kSelectTile >= kSelectTile;
  if (full) {
    AIACC_UNROLL
    for (std::uint32_t row = 0; row < kSelectRows; ++row) {
      const auto pack = *reinterpret_cast<const SelectPack*>(p.in + index_of(tile, number, row));
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < 4; ++e) {
        thread.t[row * 4 + e] = pack.at[e];
      }
    }
    thread.valid = 0xffffffff;
    AIACC_UNROLL
    for (std::uint32_t row = 0; row < kSelectRows; ++row) {
      SelectPack rest = {};
      if (p.residual != nullptr) {
        rest = *reinterpret_cast<const SelectPack*>(p.residual + index_of(tile, number, row));
      }
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < 4; ++e) {
        const float fresh = product(p.factor, thread.t[row * 4 + e]);
        thread.t[row * 4 + e] = p.residual != nullptr ? fresh + rest.at[e] : fresh;
      }
    }
  } else {
    thread.valid = 0;
    AIACC_UNROLL
    for (std::uint32_t i = 0; i < kSelectRows * 4; ++i) {
      const std::uint32_t index = index_of(tile, number, i / 4) + i % 4;
      thread.t[i] = 0.0F;
      if (index < p.count && index >= tile * kSelectTile) {  // no more than 2^32 of them
        const float fresh = product(p.factor, p.in[index]);
        thread.t[i] = p.residual != nullptr ? fresh + p.residual[index] : fresh;
        thread.valid |= 1U << i;
      }
    }
  }
  AIACC_UNROLL
  // NOLINTNEXTLINE(modernize-loop-convert)
  for (std::uint32_t i = 0; i < kSelectRows * 4; ++i) {
    thread.largest = larger(thread.largest, magnitude_of(thread.t[i]));
  }
}

/// Writes to the residual what a thread has of a tile, zeros where it was chosen.
AIACC_HOST_DEVICE inline void keep_tile(const SelectPlan& p,
                                        std::uint32_t tile,
                                        std::uint32_t number,
                                        const SelectThread& thread,
                                        std::uint32_t chosen) {
  const bool full = p.is_aligned != 0 && thread.valid == 0xffffffff;
  AIACC_UNROLL
  for (std::uint32_t row = 0; row < kSelectRows; ++row) {
    const std::uint32_t index = index_of(tile, number, row);
    SelectPack rest;
    AIACC_UNROLL
    for (std::uint32_t e = 0; e < 4; ++e) {
      rest.at[e] = (chosen >> (row * 4 + e) & 1) != 0 ? 0.0F : thread.t[row * 4 + e];
    }
    if (full) {
      *reinterpret_cast<SelectPack*>(p.residual_out + index) = rest;
    } else {
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < 4; ++e) {
        if ((thread.valid >> (row * 4 + e) & 1) != 0) {
          p.residual_out[index + e] = rest.at[e];
        }
      }
    }
  }
}

/// Bits for the elements whose magnitude is at least `low` and below `high`.
AIACC_HOST_DEVICE inline std::uint32_t pick(const SelectThread& thread,
                                            std::uint32_t low,
                                            std::uint32_t high) {
  std::uint32_t picked = 0;
  AIACC_UNROLL
  for (std::uint32_t i = 0; i < kSelectRows * 4; ++i) {
    const std::uint32_t bits = magnitude_of(thread.t[i]);
    picked |= static_cast<std::uint32_t>(bits >= low && bits < high) << i;
  }
  return picked & thread.valid;
}

/// A block's tiles, one after another.
template <class Grid, class Block, class Visit>
AIACC_HOST_DEVICE void each_tile(Grid& grid, Block& block, const SelectPlan& p, Visit visit) {
  for (std::uint32_t tile = block.number(); tile < p.tiles; tile += grid.size()) {
    visit(tile);
  }
}

template <class Block>
AIACC_HOST_DEVICE void clear_bins(Block& block, std::uint32_t bins) {
  block.each([&](std::uint32_t number, SelectThread&) {
    for (std::uint32_t bin = number; bin < bins; bin += kSelectThreads) {
      block.shared().bins[bin] = 0;
    }
  });
}

template <class Block>
AIACC_HOST_DEVICE void add_bins(Block& block, std::uint32_t* all, std::uint32_t bins) {
  block.each([&](std::uint32_t number, SelectThread&) {
    for (std::uint32_t bin = number; bin < bins; bin += kSelectThreads) {
      if (block.shared().bins[bin] != 0) {
        add_to(all[bin], block.shared().bins[bin]);
      }
    }
  });
}

/// Bins by which the next pass splits a range.
AIACC_HOST_DEVICE inline int next_shift(const SelectRange& range) {
  return range.shift > 12 ? range.shift - 12 : 0;
}

/// Adds an element to the bins of the pass that splits `range`.
AIACC_HOST_DEVICE inline void count_in_range(std::uint32_t* bins,
                                             const SelectRange& range,
                                             std::uint32_t bits) {
  const std::uint32_t beyond = bits - range.base;
  if (bits >= range.base && beyond >> range.shift == 0) {
    add_to(bins[beyond >> next_shift(range)], 1);
  }
}

/// Every thread's picks of kind `which` are counted: in the threads before it, and by warps in
/// shared memory.
template <class Block>
AIACC_HOST_DEVICE void count_picks(Block& block, int which) {
  block.sum_before([which](SelectThread& thread) -> std::uint64_t& { return thread.before[which]; },
                   [which](SelectThread& thread) -> std::uint64_t& { return thread.total[which]; });
  block.each([&](std::uint32_t number, SelectThread& thread) {
    if (number % kWarpThreads == 0) {
      block.shared().of_warp[which][number / kWarpThreads] = sum_of_rows(thread.total[which]);
    }
  });
}

/// How many picks are in the warps before, or, for kWarps, in all.
template <class Block>
AIACC_HOST_DEVICE std::uint32_t picks_before(Block& block, int which, std::uint32_t warp) {
  std::uint32_t sum = 0;
  AIACC_UNROLL
  for (std::uint32_t w = 0; w < kWarps; ++w) {
    sum += w < warp ? block.shared().of_warp[which][w] : 0;
  }
  return sum;
}

AIACC_HOST_DEVICE inline std::uint32_t row_of(std::uint64_t counts, std::uint32_t row) {
  return static_cast<std::uint32_t>(counts >> (8 * row)) & 0xff;
}

}  // namespace
}  // namespace aiacc
