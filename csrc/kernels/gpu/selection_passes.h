#pragma once

// The passes of selection_body.h over all elements, a tile at a time.

#include <cstdint>

#include "csrc/kernels/gpu/selection_tiles.h"

namespace aiacc {
namespace {

/// One pass that appends what reaches `low` to the candidates, and counts it in `range`.
template <class Grid>
AIACC_HOST_DEVICE void scan_tiles(Grid& grid,
                                  const SelectPlan& p,
                                  std::uint32_t low,
                                  const SelectRange& range) {
  const bool keeps = p.residual_out != nullptr && p.residual_out != p.residual;
  grid.blocks([&](auto& block) {
    auto& shared = block.shared();
    clear_bins(block, kSelectBins);
    block.each([](std::uint32_t, SelectThread& thread) { thread.largest = 0; });
    each_tile(grid, block, p, [&](std::uint32_t tile) {
      block.each([&](std::uint32_t number, SelectThread& thread) {
        load_tile(p, tile, number, thread);
        if (keeps) {
          keep_tile(p, tile, number, thread, 0);
        }
        thread.picked[0] = pick(thread, low, 0xffffffff);
        thread.before[0] = counts_of_rows(thread.picked[0]);
      });
      count_picks(block, 0);
      block.each([&](std::uint32_t number, SelectThread&) {
        if (number == 0) {
          const std::uint32_t found = picks_before(block, 0, kWarps);
          // What is too much is only counted: no more than 2^32, since an element counts once.
          shared.base = found == 0 ? 0 : add_to(p.state->candidates, found);
          shared.fits = shared.base <= p.room && found <= p.room - shared.base ? 1 : 0;
          p.tile[tile].offset = shared.base;
          p.tile[tile].found = found;
        }
      });
      block.each([&](std::uint32_t number, SelectThread& thread) {
        if (shared.fits == 0) {
          return;
        }
        std::uint32_t at = shared.base + picks_before(block, 0, number / kWarpThreads);
        AIACC_UNROLL
        for (std::uint32_t row = 0; row < kSelectRows; ++row) {
          std::uint32_t to = at + row_of(thread.before[0], row);
          AIACC_UNROLL
          for (std::uint32_t e = 0; e < 4; ++e) {
            if ((thread.picked[0] >> (row * 4 + e) & 1) != 0) {
              const float value = thread.t[row * 4 + e];
              p.candidate_values[to] = value;
              p.candidate_indices[to] = index_of(tile, number, row) + e;
              ++to;
              count_in_range(shared.bins, range, magnitude_of(value));
            }
          }
          at += row_of(thread.total[0], row);
        }
      });
    });
    block.each(
        [&](std::uint32_t, SelectThread& thread) { raise_to(p.state->largest, thread.largest); });
    add_bins(block, p.bins, kSelectBins);
  });
}

/// One pass that counts in `range`.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void count_tiles_in_range(Grid& grid,
                                                           const SelectPlan& plan,
                                                           const SelectRange& range) {
  const SelectPlan p = plan;  // in registers: nothing that is written may change it
  grid.blocks([&](auto& block) {
    clear_bins(block, kSelectBins);
    block.each([&](std::uint32_t number, SelectThread& thread) {
      thread.largest = 0;
      each_tile(grid, block, p, [&](std::uint32_t tile) {
        load_tile(p, tile, number, thread);
        AIACC_UNROLL
        for (std::uint32_t i = 0; i < kSelectRows * 4; ++i) {
          if ((thread.valid >> i & 1) != 0) {
            count_in_range(block.shared().bins, range, magnitude_of(thread.t[i]));
          }
        }
      });
      raise_to(p.state->largest, thread.largest);
    });
    add_bins(block, p.bins, kSelectBins);
  });
}

/// Picks of both kinds, chosen without question and ties.
AIACC_HOST_DEVICE inline void pick_both(const SelectState& s, SelectThread& thread) {
  thread.picked[0] = pick(thread, s.high_bits, 0xffffffff);
  thread.picked[1] = pick(thread, s.low_bits, s.high_bits);
  thread.before[0] = counts_of_rows(thread.picked[0]);
  thread.before[1] = counts_of_rows(thread.picked[1]);
}

/// One pass that counts in every tile what the bracket holds.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void count_tiles(Grid& grid, const SelectPlan& p) {
  grid.blocks([&](auto& block) {
    each_tile(grid, block, p, [&](std::uint32_t tile) {
      block.each([&](std::uint32_t number, SelectThread& thread) {
        thread.largest = 0;
        load_tile(p, tile, number, thread);
        pick_both(*p.state, thread);
      });
      count_picks(block, 0);
      count_picks(block, 1);
      block.each([&](std::uint32_t number, SelectThread&) {
        if (number == 0) {
          p.tile[tile].above = picks_before(block, 0, kWarps);
          p.tile[tile].ties = picks_before(block, 1, kWarps);
        }
      });
    });
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

/// The pass that takes: writes pairs, and the whole residual.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void take_of_tiles(Grid& grid, const SelectPlan& plan) {
  const SelectPlan p = plan;  // in registers: nothing that is written may change it
  grid.blocks([&](auto& block) {
    each_tile(grid, block, p, [&](std::uint32_t tile) {
      block.each([&](std::uint32_t number, SelectThread& thread) {
        thread.largest = 0;
        load_tile(p, tile, number, thread);
        pick_both(*p.state, thread);
      });
      count_picks(block, 0);
      count_picks(block, 1);
      block.each([&](std::uint32_t number, SelectThread& thread) {
        const SelectState& s = *p.state;
        const std::uint32_t warp = number / kWarpThreads;
        std::uint32_t above = p.tile[tile].above + picks_before(block, 0, warp);
        std::uint32_t ties = p.tile[tile].ties + picks_before(block, 1, warp);
        std::uint32_t chosen = 0;
        AIACC_UNROLL
        for (std::uint32_t row = 0; row < kSelectRows; ++row) {
          std::uint32_t above_here = above + row_of(thread.before[0], row);
          std::uint32_t ties_here = ties + row_of(thread.before[1], row);
          AIACC_UNROLL
          for (std::uint32_t e = 0; e < 4; ++e) {
            const std::uint32_t bit = 1U << (row * 4 + e);
            const bool is_above = (thread.picked[0] & bit) != 0;
            const bool is_tie = (thread.picked[1] & bit) != 0;
            const std::uint32_t taken = taken_of(s, ties_here);
            ties_here += is_tie ? 1 : 0;
            if (is_above || taken_of(s, ties_here) > taken) {
              write_pair(
                  p, above_here + taken, thread.t[row * 4 + e], index_of(tile, number, row) + e);
              chosen |= bit;
            }
            above_here += is_above ? 1 : 0;
          }
          above += row_of(thread.total[0], row);
          ties += row_of(thread.total[1], row);
        }
        if (p.residual_out != nullptr) {
          keep_tile(p, tile, number, thread, chosen);
        }
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
    each_tile(grid, block, p, [&](std::uint32_t tile) {
      block.each([&](std::uint32_t number, SelectThread& thread) {
        if (in_place) {
          thread.largest = 0;
          load_tile(p, tile, number, thread);
          keep_tile(p, tile, number, thread, 0);
          return;
        }
        for (std::uint32_t i = 0; i < kSelectRows * 4; ++i) {
          const std::uint32_t index = index_of(tile, number, i / 4) + i % 4;
          if (index < p.count && index >= tile * kSelectTile) {
            p.residual_out[index] = p.residual[index];
          }
        }
      });
    });
  });
}

/// The first element that is not finite, among zeros of the lowest other indices.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void write_not_finite(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  grid.blocks([&](auto& block) {
    each_tile(grid, block, p, [&](std::uint32_t tile) {
      block.each([&](std::uint32_t number, SelectThread& thread) {
        thread.largest = 0;
        load_tile(p, tile, number, thread);
        if (thread.largest >= kNotFinite) {
          AIACC_UNROLL
          for (std::uint32_t i = 0; i < kSelectRows * 4; ++i) {
            if (magnitude_of(thread.t[i]) >= kNotFinite) {
              lower_to(s.first_bad, index_of(tile, number, i / 4) + i % 4);
            }
          }
        }
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
