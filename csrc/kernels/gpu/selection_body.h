#pragma once

// The body of the kernel of selection.h, for selection.cu and selection.cc. One launch does it all:
// nothing comes back to the host between the passes. It gives the bits of ../select.h.

#include <cstdint>

#include "csrc/kernels/gpu/selection_bisect.h"
#include "csrc/kernels/gpu/selection_candidates.h"
#include "csrc/kernels/selection/random_below.h"

namespace aiacc {
namespace {

/// The range of all magnitudes.
AIACC_HOST_DEVICE inline SelectRange whole_range(const SelectPlan& p) {
  return {0, 31, 0, p.count};
}
/// An octave from the threshold of candidates on, in which the k-th is where it was foreseen.
AIACC_HOST_DEVICE inline SelectRange near_range(std::uint32_t low) { return {low, 23, 0, 0}; }

template <class Grid>
AIACC_HOST_DEVICE void clear_all_bins(Grid& grid, const SelectPlan& p) {
  grid.blocks([&](auto& block) {
    block.each([&](std::uint32_t number, SelectThread&) {
      for (std::uint32_t bin = block.number() * kSelectThreads + number; bin < kSelectBins;
           bin += grid.size() * kSelectThreads) {
        p.bins[bin] = 0;
      }
    });
  });
}

/// Goes to the part of `range` in which the k-th largest is, by the bins, and clears those. `all`
/// elements reach the range's base. False if the k-th is above the range.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void narrow_range(Grid& grid,
                                                   const SelectPlan& p,
                                                   const SelectRange& range,
                                                   bool above_is_known) {
  constexpr std::uint32_t kShare = kSelectBins / kSelectThreads;
  grid.blocks([&](auto& block) {
    if (block.number() != 0) {
      return;
    }
    auto& shared = block.shared();
    // Thread 0 has the uppermost bins, so that what is before a thread is larger.
    const auto bin_of = [](std::uint32_t number, std::uint32_t i) {
      return kSelectBins - 1 - number * kShare - i;
    };
    block.each([&](std::uint32_t number, SelectThread& thread) {
      thread.sum = 0;
      for (std::uint32_t i = 0; i < kShare; ++i) {
        thread.sum += p.bins[bin_of(number, i)];
      }
      thread.before[0] = thread.sum;
    });
    block.sum_before([](SelectThread& thread) -> std::uint64_t& { return thread.before[0]; },
                     [](SelectThread& thread) -> std::uint64_t& { return thread.total[0]; });
    block.each([&](std::uint32_t number, SelectThread& thread) {
      if (number % kWarpThreads == 0) {
        shared.of_warp[0][number / kWarpThreads] = static_cast<std::uint32_t>(thread.total[0]);
      }
    });
    block.each([&](std::uint32_t number, SelectThread& thread) {
      const std::uint32_t inside = picks_before(block, 0, kWarps);
      std::uint32_t above = above_is_known ? range.above : p.state->seen - inside;
      if (number == 0 && (p.k <= above || p.k > above + inside)) {
        p.state->range = {0, -1, above, inside};
      }
      above += picks_before(block, 0, number / kWarpThreads) +
               static_cast<std::uint32_t>(thread.before[0]);
      if (p.k > above && p.k <= above + thread.sum) {
        std::uint32_t i = 0;
        while (p.k > above + p.bins[bin_of(number, i)]) {
          above += p.bins[bin_of(number, i)];
          ++i;
        }
        const int shift = next_shift(range);
        const std::uint32_t bin = bin_of(number, i);
        p.state->range = {range.base + (bin << shift), shift, above, p.bins[bin]};
      }
    });
    block.each([&](std::uint32_t number, SelectThread&) {
      for (std::uint32_t i = 0; i < kShare; ++i) {
        p.bins[bin_of(number, i)] = 0;
      }
    });
  });
}

/// The bracket of the k-th largest alone.
AIACC_HOST_DEVICE inline void set_exact_bracket(SelectState& s) {
  s.low_bits = s.range.base;
  s.high_bits = s.range.base + 1;
  s.above = s.range.above;
  s.reached = s.range.above + s.range.inside;
}

/// A scan from `low` on whose candidates are counted in `range`, and what came of it.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void collect(Grid& grid,
                                              const SelectPlan& plan,
                                              std::uint32_t low,
                                              const SelectRange& range) {
  const SelectPlan p = plan;  // in registers: nothing that is written may change it
  SelectState& s = *p.state;
  grid.one([&] { s.candidates = 0; });
  scan_tiles(grid, p, low, range);
  grid.one([&] {
    s.seen = s.candidates;
    s.finite = s.largest < kNotFinite ? 1 : 0;
    s.scan = s.seen < p.k ? Scan::kTooFew : s.seen > p.room ? Scan::kTooMany : Scan::kHit;
    s.collected = s.finite != 0 && s.scan == Scan::kHit ? 1 : 0;
  });
}

/// Until the range is a single magnitude.
template <class Grid>
AIACC_HOST_DEVICE void narrow_to_one(Grid& grid, const SelectPlan& p) {
  while (p.state->range.shift > 0) {
    const SelectRange range = p.state->range;
    count_candidates_in_range(grid, p, range);
    narrow_range(grid, p, range, true);
  }
}

/// Tries the candidates that the track foresees. Afterwards `collected` says whether that is done.
template <class Grid>
AIACC_HOST_DEVICE void try_track(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  if (s.low == 0) {
    return;  // no prediction
  }
  const SelectRange near = near_range(s.low);
  collect(grid, p, s.low, near);
  if (s.collected == 0) {
    return;
  }
  narrow_range(grid, p, near, false);
  if (s.range.shift < 0) {  // more than an octave away
    const SelectRange whole = whole_range(p);
    count_candidates_in_range(grid, p, whole);
    narrow_range(grid, p, whole, true);
  }
  narrow_to_one(grid, p);
}

/// Finds the k-th largest from nothing: narrows the range by passes over everything until there is
/// room for what reaches it.
template <class Grid>
AIACC_HOST_DEVICE void find_exactly(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  clear_all_bins(grid, p);  // of a prediction that failed
  grid.one([&] { s.range = whole_range(p); });
  do {
    const SelectRange range = s.range;
    count_tiles_in_range(grid, p, range);
    narrow_range(grid, p, range, true);
  } while (s.range.shift > 0 && s.range.above + s.range.inside > p.room);
  grid.one([&] { s.finite = s.largest < kNotFinite ? 1 : 0; });
  if (s.finite == 0 || s.range.above + s.range.inside > p.room) {
    return;
  }
  const SelectRange range = s.range;
  const Scan scan = s.scan;
  collect(grid, p, range.base, range);
  grid.one([&] { s.scan = scan; });  // what became of the prediction
  narrow_range(grid, p, range, true);
  narrow_to_one(grid, p);
}

/// Draws which ties are taken, and ends the step in the state.
AIACC_HOST_DEVICE inline void decide(const SelectPlan& p) {
  SelectState& s = *p.state;
  if (p.mode != SelectMode::kReference) {
    set_exact_bracket(s);
  }
  s.run = p.k - s.above;
  s.before_run =
      static_cast<std::uint32_t>(random_below(p.seed, std::uint64_t{s.reached - p.k} + 1));
  const bool fell_back =
      p.mode == SelectMode::kTracked && s.scan != Scan::kHit && s.scan != Scan::kNone;
  s.result = Selection{true, fell_back, raw_float(s.low_bits)};
  if (p.mode == SelectMode::kTracked) {
    s.track = after_step(s.track, s.scan, raw_float(s.low_bits), p.k, s.seen);
  }
}

template <class Grid>
AIACC_HOST_DEVICE void select_all(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  clear_all_bins(grid, p);
  grid.one([&] {
    s.largest = 0;
    s.first_bad = 0xffffffff;
    s.collected = 0;
    s.finite = 1;
    s.scan = Scan::kNone;
    s.low = p.mode == SelectMode::kTracked ? raw_bits(candidate_threshold(s.track)) : 0;
  });
  if (p.mode == SelectMode::kReference) {
    find_by_bisection(grid, p);
    if (s.finite != 0 && s.reached <= p.room) {
      collect(grid, p, s.low_bits, SelectRange{0xffffffff, 0, 0, 0});
    }
  } else {
    try_track(grid, p);
    if (s.collected == 0 && s.finite != 0) {
      find_exactly(grid, p);
    }
  }
  if (s.finite == 0) {
    write_not_finite(grid, p);
    settle_residual(grid, p);
    return;
  }
  grid.one([&] { decide(p); });
  if (s.collected != 0) {
    count_candidates(grid, p);
    add_up_tiles(grid, p);
    settle_residual(grid, p);
    take_of_candidates(grid, p);
  } else {
    count_tiles(grid, p);
    add_up_tiles(grid, p);
    take_of_tiles(grid, p);
  }
}

}  // namespace
}  // namespace aiacc
