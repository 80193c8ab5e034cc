#pragma once

// What a warp has of a strip: rows of 128 elements, of which each thread has four neighbours, so
// that the order of rows and threads is that of the indices.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "csrc/kernels/gpu/grid.h"
#include "csrc/kernels/gpu/selection.h"
#include "csrc/kernels/vector/block_formats.h"

namespace aiacc {
namespace {

constexpr std::uint32_t kNotFinite = 0x7f800000;  ///< bits of the least magnitude that is not
constexpr std::uint32_t kWarps = kSelectThreads / kWarpThreads;
constexpr std::uint32_t kSelectRow = 4 * kWarpThreads;
constexpr std::uint32_t kSelectRows = kSelectStrip / kSelectRow;
constexpr std::uint32_t kSelectElements = 4 * kSelectRows;  ///< of a thread
constexpr std::uint32_t kAllPicks = (1U << kSelectElements) - 1;
/// A byte for each row.
using RowCounts = std::uint32_t;
static_assert(kSelectRows == sizeof(RowCounts), "a byte for each row");
static_assert(kSelectChunk == 4 * kWarpThreads, "a thread has four candidates of a chunk");

struct SelectThread {
  float t[kSelectElements];
  float fresh[kSelectElements];  ///< of the strip after, where it is read ahead
  std::uint32_t valid;           ///< a bit for each of them
  std::uint32_t picked;          ///< likewise
  std::uint32_t ties;            ///< likewise
  std::uint32_t largest;
  RowCounts before;  ///< picked by threads before this one
  RowCounts ties_before;
  std::uint32_t sum;
  std::uint32_t sum_before;
  std::uint64_t pairs;  ///< chosen without question, and 2^32 for each tie
};

struct SelectShared {
  std::uint32_t bins[kSelectBins];
  std::uint32_t of_warp[kWarps];
  std::uint64_t pairs[kWarps];
  std::uint64_t pairs_before;  ///< of all blocks before
};

AIACC_HOST_DEVICE inline std::uint32_t magnitude_of(float value) {
  return raw_bits(value) & 0x7fffffff;
}

AIACC_HOST_DEVICE inline std::uint32_t row_of(RowCounts counts, std::uint32_t row) {
  return counts >> (8 * row) & 0xff;
}

AIACC_HOST_DEVICE inline std::uint32_t sum_of_rows(RowCounts counts) {
  std::uint32_t sum = 0;
  AIACC_UNROLL
  for (std::uint32_t row = 0; row < kSelectRows; ++row) {
    sum += row_of(counts, row);
  }
  return sum;
}

/// How many bits of each group of four are set.
AIACC_HOST_DEVICE inline RowCounts counts_of_rows(std::uint32_t bits) {
  bits -= (bits >> 1) & 0x5555;
  bits = (bits & 0x3333) + ((bits >> 2) & 0x3333);  // a count in every four bits
  bits = (bits | bits << 8) & 0x00ff00ff;
  return (bits | bits << 4) & 0x0f0f0f0f;
}

/// How many bits are set.
AIACC_HOST_DEVICE inline std::uint32_t ones_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__popc(bits));
#else
  return static_cast<std::uint32_t>(__builtin_popcount(bits));
#endif
}

/// The lowest bit that is set; there is one.
AIACC_HOST_DEVICE inline std::uint32_t lowest_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__ffs(static_cast<int>(bits))) - 1;
#else
  return static_cast<std::uint32_t>(__builtin_ctz(bits));
#endif
}

/// An element of a thread. Registers have no index, so it looks at all of them.
AIACC_HOST_DEVICE inline float element_of(const SelectThread& thread, std::uint32_t place) {
  float value = thread.t[0];
  AIACC_UNROLL
  for (std::uint32_t i = 1; i < kSelectElements; ++i) {
    value = place == i ? thread.t[i] : value;
  }
  return value;
}

/// The first element of a thread's row, within the strip.
AIACC_HOST_DEVICE inline std::uint32_t place_of(std::uint32_t number, std::uint32_t row) {
  return row * kSelectRow + number * 4;
}
AIACC_HOST_DEVICE inline std::uint32_t index_of(std::uint32_t strip,
                                                std::uint32_t number,
                                                std::uint32_t row) {
  return strip * kSelectStrip + place_of(number, row);
}

struct alignas(16) SelectPack {
  float at[4];
};

/// How many elements there are from the begin of a strip on.
AIACC_HOST_DEVICE inline std::uint32_t left_from(const SelectPlan& p, std::uint32_t strip) {
  return p.count - strip * kSelectStrip;
}

/// Bits for the elements of a thread that there are.
AIACC_HOST_DEVICE inline std::uint32_t valid_of(std::uint32_t left, std::uint32_t number) {
  if (left >= kSelectStrip) {
    return kAllPicks;
  }
  std::uint32_t valid = 0;
  AIACC_UNROLL
  for (std::uint32_t i = 0; i < kSelectElements; ++i) {
    valid |= place_of(number, i / 4) + i % 4 < left ? 1U << i : 0;
  }
  return valid;
}

/// Reads a thread's part of a strip, zeros where there are no elements. One address and fixed
/// offsets from it: registers are short in the loop over strips.
AIACC_HOST_DEVICE inline void read_strip(const SelectPlan& p,
                                         const float* memory,
                                         std::uint32_t strip,
                                         std::uint32_t number,
                                         float (&to)[kSelectElements]) {
  const float* from = memory + std::uint64_t{strip} * kSelectStrip + number * 4;
  const std::uint32_t left = left_from(p, strip);
  if (p.is_aligned != 0 && left >= kSelectStrip) {
    AIACC_UNROLL
    for (std::uint32_t row = 0; row < kSelectRows; ++row) {
      const auto pack = *reinterpret_cast<const SelectPack*>(from + row * kSelectRow);
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < 4; ++e) {
        to[row * 4 + e] = pack.at[e];
      }
    }
    return;
  }
  const std::uint32_t valid = valid_of(left, number);
  AIACC_UNROLL
  for (std::uint32_t i = 0; i < kSelectElements; ++i) {
    to[i] = (valid >> i & 1) != 0 ? from[i / 4 * kSelectRow + i % 4] : 0.0F;
  }
}

/// What was read of a strip: t = factor * in + residual, and the largest magnitude so far.
AIACC_HOST_DEVICE inline void take_strip(const SelectPlan& p,
                                         std::uint32_t strip,
                                         std::uint32_t number,
                                         SelectThread& thread) {
  if (p.residual != nullptr) {
    read_strip(p, p.residual, strip, number, thread.t);
  }
  AIACC_UNROLL
  for (std::uint32_t i = 0; i < kSelectElements; ++i) {
    const float fresh = product(p.factor, thread.fresh[i]);
    thread.t[i] = p.residual != nullptr ? fresh + thread.t[i] : fresh;
    thread.largest = larger(thread.largest, magnitude_of(thread.t[i]));
  }
  thread.valid = valid_of(left_from(p, strip), number);
}

/// Writes to the residual what a thread has of a strip, zeros where it was chosen.
AIACC_HOST_DEVICE inline void keep_strip(const SelectPlan& p,
                                         std::uint32_t strip,
                                         std::uint32_t number,
                                         const SelectThread& thread,
                                         std::uint32_t chosen) {
  float* out = p.residual_out + std::uint64_t{strip} * kSelectStrip + number * 4;
  const bool whole = p.is_aligned != 0 && left_from(p, strip) >= kSelectStrip;
  AIACC_UNROLL
  for (std::uint32_t row = 0; row < kSelectRows; ++row) {
    SelectPack rest;
    AIACC_UNROLL
    for (std::uint32_t e = 0; e < 4; ++e) {
      rest.at[e] = (chosen >> (row * 4 + e) & 1) != 0 ? 0.0F : thread.t[row * 4 + e];
    }
    if (whole) {
      *reinterpret_cast<SelectPack*>(out + row * kSelectRow) = rest;
    } else {
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < 4; ++e) {
        if ((thread.valid >> (row * 4 + e) & 1) != 0) {
          out[row * kSelectRow + e] = rest.at[e];
        }
      }
    }
  }
}

/// Bits for the elements whose magnitude is at least that of `low`, as floats: so a thread need not
/// hold the magnitudes. Without NaN it is the order of their bits.
AIACC_HOST_DEVICE inline std::uint32_t pick(const SelectThread& thread, std::uint32_t low) {
  const float least = raw_float(low);
  std::uint32_t picked = 0;
  AIACC_UNROLL
  for (std::uint32_t i = 0; i < kSelectElements; ++i) {
    picked |= std::fabs(thread.t[i]) >= least ? 1U << i : 0;
  }
  return picked & thread.valid;
}

/// A warp of the grid by its number. Its strips are neighbours, and those of the next one follow.
template <class Grid, class Block, class Warp>
AIACC_HOST_DEVICE std::uint32_t number_of(Grid&, Block& block, Warp& warp) {
  return block.number() * kWarps + warp.number();
}

/// A warp's strips, one after another: when visit(strip) is called, its threads have it. Ahead: the
/// next one is read meanwhile, which takes registers.
template <bool kAhead = false, class Warp, class Visit>
AIACC_HOST_DEVICE void each_strip(Warp& warp,
                                  std::uint32_t number_of_warp,
                                  std::uint32_t warps,
                                  const SelectPlan& p,
                                  Visit visit) {
  const std::uint32_t share = p.strips / warps;
  const std::uint32_t more = p.strips % warps;  // so many warps have one strip more
  const std::uint32_t begin =
      number_of_warp * share + (number_of_warp < more ? number_of_warp : more);
  const std::uint32_t end = begin + share + (number_of_warp < more ? 1 : 0);
  warp.each([&](std::uint32_t number, SelectThread& thread) {
    thread.largest = 0;
    if (kAhead && begin < end) {
      read_strip(p, p.in, begin, number, thread.fresh);
    }
  });
  for (std::uint32_t strip = begin; strip < end; ++strip) {
    warp.each([&](std::uint32_t number, SelectThread& thread) {
      if (!kAhead) {
        read_strip(p, p.in, strip, number, thread.fresh);
      }
      take_strip(p, strip, number, thread);
      if (kAhead && strip + 1 < end) {
        read_strip(p, p.in, strip + 1, number, thread.fresh);
      }
    });
    visit(strip);
  }
}

/// Tells the largest magnitude of a warp's strips.
template <class Warp>
AIACC_HOST_DEVICE void report_largest(Warp& warp, SelectState& state) {
  const std::uint32_t largest =
      warp.largest([](SelectThread& thread) -> std::uint32_t& { return thread.largest; });
  warp.one([&] {
    raise_to(state.largest, largest);
    return 0;
  });
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
AIACC_HOST_DEVICE inline int next_shift(SelectRange range) {
  return range.shift > 12 ? range.shift - 12 : 0;
}

/// Adds an element to the bins of the pass that splits `range`.
AIACC_HOST_DEVICE inline void count_in_range(std::uint32_t* bins,
                                             SelectRange range,
                                             std::uint32_t bits) {
  const std::uint32_t beyond = bits - range.base;
  if (bits >= range.base && beyond >> range.shift == 0) {
    add_to(bins[beyond >> next_shift(range)], 1);
  }
}

}  // namespace
}  // namespace aiacc
