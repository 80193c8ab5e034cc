#pragma once

// The passes of selection_body.h over the candidates.

#include <cstdint>

#include "csrc/kernels/gpu/selection_passes.h"

namespace aiacc {
namespace {

/// One pass over the candidates that counts in `range`.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void count_candidates_in_range(Grid& grid,
                                                                const SelectPlan& p,
                                                                const SelectRange& range) {
  const std::uint32_t candidates = p.state->seen;
  grid.blocks([&](auto& block) {
    clear_bins(block, kSelectBins);
    block.each([&](std::uint32_t number, SelectThread&) {
      for (std::uint64_t i = block.number() * kSelectThreads + number; i < candidates;
           i += grid.size() * kSelectThreads) {
        count_in_range(block.shared().bins, range, magnitude_of(p.candidate_values[i]));
      }
    });
    add_bins(block, p.bins, kSelectBins);
  });
}

/// Counts in every tile what of its candidates the bracket holds, a warp for each.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void count_candidates(Grid& grid, const SelectPlan& p) {
  grid.blocks([&](auto& block) {
    const std::uint32_t stride = grid.size() * kWarps;
    for (std::uint32_t first = block.number() * kWarps; first < p.tiles; first += stride) {
      block.each([&](std::uint32_t number, SelectThread& thread) {
        const SelectState& s = *p.state;
        const std::uint32_t tile = first + number / kWarpThreads;
        thread.before[0] = 0;
        if (tile < p.tiles) {
          for (std::uint32_t i = number % kWarpThreads; i < p.tile[tile].found; i += kWarpThreads) {
            const std::uint32_t bits = magnitude_of(p.candidate_values[p.tile[tile].offset + i]);
            thread.before[0] += bits >= s.high_bits  ? 1
                                : bits >= s.low_bits ? std::uint64_t{1} << 32
                                                     : 0;
          }
        }
      });
      block.sum_before([](SelectThread& thread) -> std::uint64_t& { return thread.before[0]; },
                       [](SelectThread& thread) -> std::uint64_t& { return thread.total[0]; });
      block.each([&](std::uint32_t number, SelectThread& thread) {
        const std::uint32_t tile = first + number / kWarpThreads;
        if (number % kWarpThreads == 0 && tile < p.tiles) {
          p.tile[tile].above = static_cast<std::uint32_t>(thread.total[0]);
          p.tile[tile].ties = static_cast<std::uint32_t>(thread.total[0] >> 32);
        }
      });
    }
  });
}

/// The tiles' counts become those of the tiles before, by one block.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void add_up_tiles(Grid& grid, const SelectPlan& p) {
  grid.blocks([&](auto& block) {
    if (block.number() != 0) {
      return;
    }
    const std::uint32_t share = (p.tiles + kSelectThreads - 1) / kSelectThreads;
    const auto each_of_share = [&](std::uint32_t number, auto visit) {
      for (std::uint32_t i = 0; i < share; ++i) {
        if (number * share + i < p.tiles) {
          visit(p.tile[number * share + i]);
        }
      }
    };
    block.each([&](std::uint32_t number, SelectThread& thread) {
      thread.before[0] = 0;
      each_of_share(number, [&](const SelectTile& tile) {
        thread.before[0] += tile.above + (std::uint64_t{tile.ties} << 32);
      });
    });
    block.sum_before([](SelectThread& thread) -> std::uint64_t& { return thread.before[0]; },
                     [](SelectThread& thread) -> std::uint64_t& { return thread.total[0]; });
    block.each([&](std::uint32_t number, SelectThread& thread) {
      if (number % kWarpThreads == 0) {
        const std::uint32_t warp = number / kWarpThreads;
        block.shared().of_warp[0][warp] = static_cast<std::uint32_t>(thread.total[0]);
        block.shared().of_warp[1][warp] = static_cast<std::uint32_t>(thread.total[0] >> 32);
      }
    });
    block.each([&](std::uint32_t number, SelectThread& thread) {
      const std::uint32_t warp = number / kWarpThreads;
      std::uint32_t above =
          picks_before(block, 0, warp) + static_cast<std::uint32_t>(thread.before[0]);
      std::uint32_t ties =
          picks_before(block, 1, warp) + static_cast<std::uint32_t>(thread.before[0] >> 32);
      each_of_share(number, [&](SelectTile& tile) {
        const SelectTile counts = tile;
        tile.above = above;
        tile.ties = ties;
        above += counts.above;
        ties += counts.ties;
      });
    });
  });
}

/// Writes the pairs of the candidates, in the order of their indices, and zeros to the residual.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void take_of_candidates(Grid& grid, const SelectPlan& plan) {
  const SelectPlan p = plan;  // in registers: nothing that is written may change it
  grid.blocks([&](auto& block) {
    const std::uint32_t stride = grid.size() * kWarps;
    for (std::uint32_t first = block.number() * kWarps; first < p.tiles; first += stride) {
      // As many rounds as the longest of these tiles needs.
      std::uint32_t rounds = 0;
      for (std::uint32_t w = 0; w < kWarps && first + w < p.tiles; ++w) {
        rounds = larger(rounds, (p.tile[first + w].found + kWarpThreads - 1) / kWarpThreads);
      }
      block.each([&](std::uint32_t number, SelectThread& thread) {
        const std::uint32_t tile = first + number / kWarpThreads;
        thread.sum = tile < p.tiles ? p.tile[tile].above : 0;
        thread.other_sum = tile < p.tiles ? p.tile[tile].ties : 0;
      });
      for (std::uint32_t round = 0; round < rounds; ++round) {
        const auto candidate_of = [&](std::uint32_t number, std::uint32_t& at) {
          const std::uint32_t tile = first + number / kWarpThreads;
          const std::uint32_t i = round * kWarpThreads + number % kWarpThreads;
          at = tile < p.tiles ? p.tile[tile].offset + i : 0;
          return tile < p.tiles && i < p.tile[tile].found;
        };
        block.each([&](std::uint32_t number, SelectThread& thread) {
          std::uint32_t at = 0;
          thread.picked[0] = 0;
          if (candidate_of(number, at)) {
            const std::uint32_t bits = magnitude_of(p.candidate_values[at]);
            thread.picked[0] = bits >= p.state->high_bits ? 1 : bits >= p.state->low_bits ? 2 : 0;
          }
          thread.before[0] = thread.picked[0] == 1   ? 1
                             : thread.picked[0] == 2 ? std::uint64_t{1} << 32
                                                     : 0;
        });
        block.sum_before([](SelectThread& thread) -> std::uint64_t& { return thread.before[0]; },
                         [](SelectThread& thread) -> std::uint64_t& { return thread.total[0]; });
        block.each([&](std::uint32_t number, SelectThread& thread) {
          const std::uint32_t above = thread.sum + static_cast<std::uint32_t>(thread.before[0]);
          const std::uint32_t ties =
              thread.other_sum + static_cast<std::uint32_t>(thread.before[0] >> 32);
          const std::uint32_t taken = taken_of(*p.state, ties);
          const bool is_tie = thread.picked[0] == 2;
          if (thread.picked[0] == 1 || (is_tie && taken_of(*p.state, ties + 1) > taken)) {
            std::uint32_t at = 0;
            candidate_of(number, at);
            const std::uint32_t index = p.candidate_indices[at];
            write_pair(p, above + taken, p.candidate_values[at], index);
            if (p.residual_out != nullptr) {
              p.residual_out[index] = 0.0F;
            }
          }
          thread.sum += static_cast<std::uint32_t>(thread.total[0]);
          thread.other_sum += static_cast<std::uint32_t>(thread.total[0] >> 32);
        });
      }
    }
  });
}

}  // namespace
}  // namespace aiacc
