#pragma once

// The passes of selection_body.h over the candidates.

#include <cstdint>

#include "csrc/kernels/gpu/selection_passes.h"
#include "csrc/kernels/gpu/selection_scan.h"

namespace aiacc {
namespace {

/// A warp's candidates, chunk by chunk: when visit(slot) is called, its threads have the values of
/// four neighbours from that slot on, and bits for those that are there.
template <class Warp, class Visit>
AIACC_HOST_DEVICE void each_chunk(Warp& warp,
                                  std::uint32_t number_of_warp,
                                  const SelectPlan& p,
                                  Visit visit) {
  const SelectShare share = p.share[number_of_warp];
  std::uint32_t chunk = share.first;
  for (std::uint32_t at = 0; at < share.found; at += kSelectChunk) {
    const std::uint32_t left = share.found - at;
    warp.each([&](std::uint32_t number, SelectThread& thread) {
      const auto pack = *reinterpret_cast<const SelectPack*>(
          p.candidate_values + std::uint64_t{chunk} * kSelectChunk + number * 4);
      thread.valid = 0;
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < 4; ++e) {
        thread.t[e] = pack.at[e];
        thread.valid |= number * 4 + e < left ? 1U << e : 0;
      }
    });
    visit(chunk * kSelectChunk);
    chunk = left > kSelectChunk ? p.next[chunk] : 0;
  }
}

/// One pass over the candidates that counts in `range`.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void count_candidates_in_range(Grid& grid,
                                                                const SelectPlan& p,
                                                                SelectRange range) {
  grid.blocks([&](auto& block) {
    clear_bins(block, kSelectBins);
    block.warps([&](auto& warp) {
      each_chunk(warp, number_of(grid, block, warp), p, [&](std::uint32_t) {
        warp.each([&](std::uint32_t, SelectThread& thread) {
          AIACC_UNROLL
          for (std::uint32_t e = 0; e < 4; ++e) {
            if ((thread.valid >> e & 1) != 0) {
              count_in_range(block.shared().bins, range, magnitude_of(thread.t[e]));
            }
          }
        });
      });
    });
    add_bins(block, p.bins, kSelectBins);
  });
}

/// 1 for what is chosen without question, 2^32 for a tie.
AIACC_HOST_DEVICE inline std::uint64_t pairs_of(const SelectState& s, std::uint32_t bits) {
  return bits > s.range.base ? 1 : bits == s.range.base ? std::uint64_t{1} << 32 : 0;
}

/// Those of a thread's four candidates.
AIACC_HOST_DEVICE inline std::uint64_t pairs_of(const SelectState& s, const SelectThread& thread) {
  std::uint64_t pairs = 0;
  AIACC_UNROLL
  for (std::uint32_t e = 0; e < 4; ++e) {
    pairs += (thread.valid >> e & 1) != 0 ? pairs_of(s, magnitude_of(thread.t[e])) : 0;
  }
  return pairs;
}

/// Counts for every warp which of its candidates reach the range.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void count_candidates(Grid& grid, const SelectPlan& p) {
  grid.blocks([&](auto& block) {
    block.warps([&](auto& warp) {
      const std::uint32_t of = number_of(grid, block, warp);
      warp.each([](std::uint32_t, SelectThread& thread) { thread.pairs = 0; });
      each_chunk(warp, of, p, [&](std::uint32_t) {
        warp.each([&](std::uint32_t, SelectThread& thread) {
          thread.pairs += pairs_of(*p.state, thread);
        });
      });
      report_pairs(block, warp, p, of);
    });
    report_block(block, p);
  });
}

/// Writes the pairs of a thread's candidates, from a slot on, and zeros to the residual. `before`:
/// pairs before them.
AIACC_HOST_DEVICE inline void take_candidates(const SelectPlan& p,
                                              const SelectState& s,
                                              const SelectThread& thread,
                                              std::uint32_t slot,
                                              std::uint64_t before) {
  auto above = static_cast<std::uint32_t>(before);
  auto ties = static_cast<std::uint32_t>(before >> 32);
  AIACC_UNROLL
  for (std::uint32_t e = 0; e < 4; ++e) {
    if ((thread.valid >> e & 1) != 0) {
      const std::uint64_t pairs = pairs_of(s, magnitude_of(thread.t[e]));
      const std::uint32_t taken = taken_of(s, ties);
      ties += static_cast<std::uint32_t>(pairs >> 32);
      if ((pairs & 1) != 0 || taken_of(s, ties) > taken) {
        const std::uint32_t index = p.candidate_indices[slot + e];
        write_pair(p, above + taken, thread.t[e], index);
        if (p.residual_out != nullptr) {
          p.residual_out[index] = 0.0F;
        }
      }
      above += static_cast<std::uint32_t>(pairs & 1);
    }
  }
}

/// Writes the pairs of the candidates, in the order of their indices, and zeros to the residual.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void take_of_candidates(Grid& grid, const SelectPlan& plan) {
  const SelectPlan p = plan;  // in registers: nothing that is written may change it
  const SelectState s = *p.state;
  grid.blocks([&](auto& block) {
    block.warps([&](auto& warp) {
      std::uint64_t before = pairs_before(block, warp, p);
      each_chunk(warp, number_of(grid, block, warp), p, [&](std::uint32_t slot) {
        warp.each([&](std::uint32_t, SelectThread& thread) { thread.pairs = pairs_of(s, thread); });
        const std::uint64_t total =
            warp.sum_before([](SelectThread& thread) -> std::uint64_t& { return thread.pairs; });
        warp.each([&](std::uint32_t number, SelectThread& thread) {
          take_candidates(p, s, thread, slot + number * 4, before + thread.pairs);
        });
        before += total;
      });
    });
  });
}

}  // namespace
}  // namespace aiacc
