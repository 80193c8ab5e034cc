#pragma once

// The pass of selection_body.h that collects candidates. A warp takes room for them in chunks, so
// that it hardly ever waits for a counter that all share.

#include <cstdint>

#include "csrc/kernels/gpu/selection_strips.h"

namespace aiacc {
namespace {

/// Room that a warp has for candidates, and where those of a strip go.
struct Room {
  std::uint32_t first;  ///< chunk
  std::uint32_t last;
  std::uint32_t found;  ///< candidates in all
  std::uint32_t lacks;  ///< there was no more
  std::uint32_t begin;  ///< slot of the strip's first `split`
  std::uint32_t split;
  std::uint32_t rest;  ///< slot of the others
};

AIACC_HOST_DEVICE inline std::uint32_t slot_of(const Room& room, std::uint32_t candidate) {
  return candidate < room.split ? room.begin + candidate : room.rest + (candidate - room.split);
}

/// Makes room for what is found in a strip.
template <class Warp>
AIACC_HOST_DEVICE void make_room(Warp& warp, const SelectPlan& p, Room& room, std::uint32_t found) {
  const std::uint32_t used = room.found % kSelectChunk;
  const std::uint32_t left = used == 0 ? 0 : kSelectChunk - used;
  room.begin = room.last * kSelectChunk + used;
  room.split = left;
  if (found > left) {
    const std::uint32_t taken = (found - left + kSelectChunk - 1) / kSelectChunk;
    const std::uint32_t from =
        warp.one([&] { return room.lacks != 0 ? 0 : add_to(p.state->chunks, taken); });
    room.lacks = room.lacks != 0 || from > p.chunks || taken > p.chunks - from ? 1 : 0;
    room.rest = from * kSelectChunk;
    if (room.lacks == 0) {
      warp.one([&] {
        std::uint32_t before = room.last;
        for (std::uint32_t chunk = from; chunk < from + taken; ++chunk) {
          if (room.found != 0 || chunk != from) {
            p.next[before] = chunk;
          }
          before = chunk;
        }
        return 0;
      });
      room.first = room.found == 0 ? from : room.first;
      room.last = from + taken - 1;
    }
  }
  room.found += found;
}

/// Writes a thread's candidates of a strip, and counts them in `range`. A loop over them: a thread
/// has few, and unrolled a warp would run the code of nearly every place.
template <class Shared>
AIACC_HOST_DEVICE void write_candidates(const SelectPlan& p,
                                        Shared& shared,
                                        const Room& room,
                                        std::uint32_t strip,
                                        std::uint32_t number,
                                        RowCounts total,
                                        const SelectThread& thread,
                                        SelectRange range) {
  for (std::uint32_t left = thread.picked; left != 0; left &= left - 1) {
    const std::uint32_t place = lowest_of(left);
    const std::uint32_t row = place / 4;
    const std::uint32_t rows_before = sum_of_rows(total & ((1U << (8 * row)) - 1));
    const std::uint32_t here = ones_of(thread.picked & ~left & 0xfU << (4 * row));
    const std::uint32_t slot = slot_of(room, rows_before + row_of(thread.before, row) + here);
    const float value = element_of(thread, place);
    p.candidate_values[slot] = value;
    p.candidate_indices[slot] = index_of(strip, number, row) + place % 4;
    count_in_range(shared.bins, range, magnitude_of(value));
  }
}

/// One pass that collects what reaches `low` as candidates, and counts it in `range`. Ranges are
/// given by value, here and elsewhere: in the state they would be read anew after every write.
template <bool kAhead, class Grid>
AIACC_HOST_DEVICE void scan_strips(Grid& grid,
                                   const SelectPlan& p,
                                   std::uint32_t low,
                                   SelectRange range) {
  const bool keeps = p.residual_out != nullptr && p.residual_out != p.residual;
  grid.blocks([&](auto& block) {
    auto& shared = block.shared();
    clear_bins(block, kSelectBins);
    block.warps([&](auto& warp) {
      const std::uint32_t number_of_warp = number_of(grid, block, warp);
      Room room = {};
      each_strip<kAhead>(warp, number_of_warp, grid.size() * kWarps, p, [&](std::uint32_t strip) {
        warp.each([&](std::uint32_t number, SelectThread& thread) {
          if (keeps) {
            keep_strip(p, strip, number, thread, 0);
          }
          thread.picked = pick(thread, low);
          thread.before = counts_of_rows(thread.picked);
        });
        if (!warp.any([](SelectThread& thread) { return thread.picked != 0; })) {
          return;
        }
        const RowCounts total =
            warp.sum_before([](SelectThread& thread) -> RowCounts& { return thread.before; });
        make_room(warp, p, room, sum_of_rows(total));
        warp.each([&](std::uint32_t number, SelectThread& thread) {
          if (thread.picked != 0 && room.lacks == 0) {
            write_candidates(p, shared, room, strip, number, total, thread, range);
          }
        });
      });
      report_largest(warp, *p.state);
      warp.one([&] {
        p.share[number_of_warp].first = room.first;
        p.share[number_of_warp].found = room.found;
        add_to(p.state->candidates, room.found);
        add_to(p.state->lacking, room.lacks);
        return 0;
      });
    });
    add_bins(block, p.bins, kSelectBins);
  });
}

}  // namespace
}  // namespace aiacc
