#pragma once

// The passes of selection_body.h over all elements, but for the scan for candidates.

#include <cstdint>

#include "csrc/kernels/gpu/selection_strips.h"

namespace aiacc {
namespace {

/// One pass that counts in `range`.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void count_strips_in_range(Grid& grid,
                                                            const SelectPlan& plan,
                                                            SelectRange range) {
  const SelectPlan p = plan;  // in registers: nothing that is written may change it
  grid.blocks([&](auto& block) {
    clear_bins(block, kSelectBins);
    block.warps([&](auto& warp) {
      const std::uint32_t of = number_of(grid, block, warp);
      each_strip(warp, of, grid.size() * kWarps, p, [&](std::uint32_t) {
        warp.each([&](std::uint32_t, SelectThread& thread) {
          AIACC_UNROLL
          for (std::uint32_t i = 0; i < kSelectElements; ++i) {
            if ((thread.valid >> i & 1) != 0) {
              count_in_range(block.shared().bins, range, magnitude_of(thread.t[i]));
            }
          }
        });
      });
      report_largest(warp, *p.state);
    });
    add_bins(block, p.bins, kSelectBins);
  });
}

/// Counts a sample in `range`: a row of kSelectSampled of them.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void count_sample_in_range(Grid& grid,
                                                            const SelectPlan& p,
                                                            SelectRange range) {
  constexpr std::uint32_t kDistance = kSelectRow * kSelectSampled;
  grid.blocks([&](auto& block) {
    clear_bins(block, kSelectBins);
    block.each([&](std::uint32_t number, SelectThread&) {
      const std::uint32_t rows = p.count / kDistance;
      for (std::uint32_t row = block.number() * kWarps + number / kWarpThreads; row < rows;
           row += grid.size() * kWarps) {
        AIACC_UNROLL
        for (std::uint32_t e = 0; e < 4; ++e) {
          const std::uint32_t index = row * kDistance + e * kWarpThreads + number % kWarpThreads;
          const float fresh = product(p.factor, p.in[index]);
          const float t = p.residual != nullptr ? fresh + p.residual[index] : fresh;
          count_in_range(block.shared().bins, range, magnitude_of(t));
        }
      }
    });
    add_bins(block, p.bins, kSelectBins);
  });
}

/// Picks of both kinds, chosen without question and ties.
AIACC_HOST_DEVICE inline void pick_both(const SelectState& s, SelectThread& thread) {
  thread.picked = pick(thread, s.range.base + 1);
  thread.ties = pick(thread, s.range.base) & ~thread.picked;
}

/// Writes down the sum of the `pairs` of a warp's threads.
template <class Block, class Warp>
AIACC_HOST_DEVICE void report_pairs(Block& block,
                                    Warp& warp,
                                    const SelectPlan& p,
                                    std::uint32_t number_of_warp) {
  const std::uint64_t pairs =
      warp.sum_before([](SelectThread& thread) -> std::uint64_t& { return thread.pairs; });
  warp.one([&] {
    block.shared().pairs[warp.number()] = pairs;
    p.share[number_of_warp].pairs = pairs;
    return 0;
  });
}

/// Adds them up for the block.
template <class Block>
AIACC_HOST_DEVICE void report_block(Block& block, const SelectPlan& p) {
  block.each([&](std::uint32_t number, SelectThread&) {
    if (number == 0) {
      std::uint64_t sum = 0;
      AIACC_UNROLL
      for (std::uint32_t warp = 0; warp < kWarps; ++warp) {
        sum += block.shared().pairs[warp];
      }
      p.of_block[block.number()] = sum;
    }
  });
}

/// The pairs of all warps before this one.
template <class Block, class Warp>
AIACC_HOST_DEVICE std::uint64_t pairs_before(Block& block, Warp& warp, const SelectPlan& p) {
  warp.each([&](std::uint32_t number, SelectThread& thread) {
    thread.pairs = 0;
    for (std::uint32_t i = number; i < block.number(); i += kWarpThreads) {
      thread.pairs += p.of_block[i];
    }
    if (number < warp.number()) {
      thread.pairs += p.share[block.number() * kWarps + number].pairs;
    }
  });
  return warp.sum_before([](SelectThread& thread) -> std::uint64_t& { return thread.pairs; });
}

/// One pass that counts for every warp what reaches the range.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void count_strips(Grid& grid, const SelectPlan& p) {
  grid.blocks([&](auto& block) {
    block.warps([&](auto& warp) {
      const std::uint32_t of = number_of(grid, block, warp);
      warp.each([](std::uint32_t, SelectThread& thread) { thread.pairs = 0; });
      each_strip(warp, of, grid.size() * kWarps, p, [&](std::uint32_t) {
        warp.each([&](std::uint32_t, SelectThread& thread) {
          pick_both(*p.state, thread);
          thread.pairs += ones_of(thread.picked) + (std::uint64_t{ones_of(thread.ties)} << 32);
        });
      });
      report_pairs(block, warp, p, of);
    });
    report_block(block, p);
  });
}

/// How many of the first `ties` ties are taken.
AIACC_HOST_DEVICE inline std::uint32_t taken_of(const SelectState& s, std::uint32_t ties) {
  const std::uint32_t beyond = ties > s.before_run ? ties - s.before_run : 0;
  return beyond < s.run ? beyond : s.run;
}

AIACC_HOST_DEVICE inline void write_pair(const SelectPlan& p,
                                         std::uint32_t at,
                                         float value,
                                         std::uint32_t index) {
  p.values[at] = value;
  p.indices[at] = index;
}

/// Writes a thread's pairs of a strip. Returns a bit for each.
AIACC_HOST_DEVICE inline std::uint32_t take_of_strip(const SelectPlan& p,
                                                     const SelectState& s,
                                                     std::uint32_t strip,
                                                     std::uint32_t number,
                                                     const SelectThread& thread,
                                                     std::uint64_t before,
                                                     RowCounts total,
                                                     RowCounts total_ties) {
  auto above = static_cast<std::uint32_t>(before);
  auto ties = static_cast<std::uint32_t>(before >> 32);
  std::uint32_t chosen = 0;
  AIACC_UNROLL
  for (std::uint32_t row = 0; row < kSelectRows; ++row) {
    std::uint32_t above_here = above + row_of(thread.before, row);
    std::uint32_t ties_here = ties + row_of(thread.ties_before, row);
    AIACC_UNROLL
    for (std::uint32_t e = 0; e < 4; ++e) {
      const std::uint32_t bit = 1U << (row * 4 + e);
      const std::uint32_t taken = taken_of(s, ties_here);
      ties_here += (thread.ties & bit) != 0 ? 1 : 0;
      if ((thread.picked & bit) != 0 || taken_of(s, ties_here) > taken) {
        write_pair(p, above_here + taken, thread.t[row * 4 + e], index_of(strip, number, row) + e);
        chosen |= bit;
      }
      above_here += (thread.picked & bit) != 0 ? 1 : 0;
    }
    above += row_of(total, row);
    ties += row_of(total_ties, row);
  }
  return chosen;
}

/// The pass that takes: writes pairs, and the whole residual.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void take_of_strips(Grid& grid, const SelectPlan& plan) {
  const SelectPlan p = plan;  // in registers: nothing that is written may change it
  const SelectState s = *p.state;
  grid.blocks([&](auto& block) {
    block.warps([&](auto& warp) {
      const std::uint32_t of = number_of(grid, block, warp);
      std::uint64_t before = pairs_before(block, warp, p);
      each_strip(warp, of, grid.size() * kWarps, p, [&](std::uint32_t strip) {
        warp.each([&](std::uint32_t, SelectThread& thread) {
          pick_both(s, thread);
          thread.before = counts_of_rows(thread.picked);
          thread.ties_before = counts_of_rows(thread.ties);
        });
        const RowCounts total =
            warp.sum_before([](SelectThread& thread) -> RowCounts& { return thread.before; });
        const RowCounts ties =
            warp.sum_before([](SelectThread& thread) -> RowCounts& { return thread.ties_before; });
        warp.each([&](std::uint32_t number, SelectThread& thread) {
          const std::uint32_t chosen =
              take_of_strip(p, s, strip, number, thread, before, total, ties);
          if (p.residual_out != nullptr) {
            keep_strip(p, strip, number, thread, chosen);
          }
        });
        before += sum_of_rows(total) + (std::uint64_t{sum_of_rows(ties)} << 32);
      });
    });
  });
}

/// Where the residual stays in its place, everything becomes t. Where it moves and something is
/// not finite, it moves as it is.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void settle_residual(Grid& grid, const SelectPlan& p) {
  const bool in_place = p.residual == p.residual_out;
  if (p.residual_out == nullptr || in_place != (p.state->finite != 0)) {
    return;
  }
  grid.blocks([&](auto& block) {
    block.warps([&](auto& warp) {
      const std::uint32_t of = number_of(grid, block, warp);
      each_strip(warp, of, grid.size() * kWarps, p, [&](std::uint32_t strip) {
        warp.each([&](std::uint32_t number, SelectThread& thread) {
          if (!in_place) {
            read_strip(p, p.residual, strip, number, thread.t);
          }
          keep_strip(p, strip, number, thread, 0);
        });
      });
    });
  });
}

/// The first element that is not finite, among zeros of the lowest other indices.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void write_not_finite(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  grid.blocks([&](auto& block) {
    block.warps([&](auto& warp) {
      const std::uint32_t of = number_of(grid, block, warp);
      each_strip(warp, of, grid.size() * kWarps, p, [&](std::uint32_t strip) {
        warp.each([&](std::uint32_t number, SelectThread& thread) {
          if (thread.largest >= kNotFinite) {
            AIACC_UNROLL
            for (std::uint32_t i = 0; i < kSelectElements; ++i) {
              if ((thread.valid >> i & 1) != 0 && magnitude_of(thread.t[i]) >= kNotFinite) {
                lower_to(s.first_bad, index_of(strip, number, i / 4) + i % 4);
              }
            }
          }
        });
      });
    });
  });
  grid.blocks([&](auto& block) {
    block.each([&](std::uint32_t number, SelectThread&) {
      const std::uint32_t bad = s.first_bad;
      const float fresh = product(p.factor, p.in[bad]);
      const float value = p.residual != nullptr ? fresh + p.residual[bad] : fresh;
      for (std::uint64_t i = block.number() * kSelectThreads + number; i < p.k;
           i += grid.size() * kSelectThreads) {
        const auto at = static_cast<std::uint32_t>(i);
        const bool is_bad = at == bad || (at + 1 == p.k && bad >= p.k);
        write_pair(p, at, is_bad ? value : 0.0F, is_bad ? bad : at);
      }
    });
  });
  grid.one([&] { s.result = Selection{false, false, 0.0F}; });
}

}  // namespace
}  // namespace aiacc
