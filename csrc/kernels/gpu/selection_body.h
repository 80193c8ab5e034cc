#pragma once

// The bodies of the kernels of selection.h, for selection.cu and selection.cc. They give the bits
// of ../select.h.

#include <cmath>
#include <cstdint>

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

/// Begins a step: the bins, and the state but for the track.
template <class Grid>
AIACC_HOST_DEVICE void begin_step(Grid& grid, const SelectPlan& p) {
  grid.blocks([&](auto& block) {
    block.each([&](std::uint32_t number, SelectThread&) {
      for (std::uint32_t bin = block.number() * kSelectThreads + number; bin < kSelectBins;
           bin += grid.size() * kSelectThreads) {
        p.bins[bin] = 0;
      }
      if (block.number() == 0 && number == 0) {
        SelectState& s = *p.state;
        s.candidates = s.chunks = s.lacking = 0;
        s.largest = 0;
        s.first_bad = 0xffffffff;
        s.collected = 0;
        s.finite = 1;
        s.scan = Scan::kNone;
        s.low = p.mode == SelectMode::kTracked ? raw_bits(candidate_threshold(s.track)) : 0;
        s.scans = 0;
        s.range = whole_range(p);
      }
    });
  });
}

/// What came of a scan for candidates.
AIACC_HOST_DEVICE inline void end_scan(const SelectPlan& p) {
  SelectState& s = *p.state;
  s.seen = s.candidates;
  s.finite = s.largest < kNotFinite ? 1 : 0;
  const Scan scan = s.seen < p.k ? Scan::kTooFew : s.seen > p.room ? Scan::kTooMany : Scan::kHit;
  s.collected = s.finite != 0 && scan == Scan::kHit && s.lacking == 0 ? 1 : 0;
  s.scan = s.way == Foresight::kTrack ? scan : s.scan;
  s.candidates = s.chunks = s.lacking = 0;  // for the next one
}

/// What is before the bins of a pass.
enum class Before {
  kRange,  ///< as many as the range says
  kScan,   ///< likewise; they are those of a scan, which ends here
  kRest,   ///< what the scan that ends here has seen, and is not in the bins
};

/// How many are in the bins of the warps before, or, for kWarps, in all.
template <class Block>
AIACC_HOST_DEVICE std::uint32_t bins_before(Block& block, std::uint32_t warp) {
  std::uint32_t sum = 0;
  AIACC_UNROLL
  for (std::uint32_t w = 0; w < kWarps; ++w) {
    sum += w < warp ? block.shared().of_warp[w] : 0;
  }
  return sum;
}

/// Goes to the part of `range` in which the k-th largest is, by the bins, and clears those. Where
/// it is not in the range, the state's range has a negative shift.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void narrow_range(
    Grid& grid, const SelectPlan& p, SelectRange range, std::uint32_t k, Before before) {
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
    block.each([&](std::uint32_t number, SelectThread&) {
      if (number == 0 && before != Before::kRange) {
        end_scan(p);
      }
      AIACC_UNROLL
      for (std::uint32_t i = 0; i < kShare; ++i) {
        const std::uint32_t bin = i * kSelectThreads + number;
        shared.bins[bin] = p.bins[bin];
        p.bins[bin] = 0;
      }
    });
    block.each([&](std::uint32_t number, SelectThread& thread) {
      thread.sum = 0;
      AIACC_UNROLL
      for (std::uint32_t i = 0; i < kShare; ++i) {
        thread.sum += shared.bins[bin_of(number, i)];
      }
      thread.sum_before = thread.sum;
    });
    block.warps([&](auto& warp) {
      const std::uint32_t total =
          warp.sum_before([](SelectThread& thread) -> std::uint32_t& { return thread.sum_before; });
      warp.one([&] { return shared.of_warp[warp.number()] = total; });
    });
    block.each([&](std::uint32_t number, SelectThread& thread) {
      const std::uint32_t inside = bins_before(block, kWarps);
      std::uint32_t above = before == Before::kRest ? p.state->seen - inside : range.above;
      if (number == 0 && (k <= above || k > above + inside)) {
        p.state->range = {0, -1, above, inside};
      }
      above += bins_before(block, number / kWarpThreads) + thread.sum_before;
      if (k > above && k <= above + thread.sum) {
        std::uint32_t i = 0;
        while (k > above + shared.bins[bin_of(number, i)]) {
          above += shared.bins[bin_of(number, i)];
          ++i;
        }
        const int shift = next_shift(range);
        const std::uint32_t bin = bin_of(number, i);
        p.state->range = {range.base + (bin << shift), shift, above, shared.bins[bin]};
      }
    });
  });
}

/// Until the range is a single magnitude.
template <class Grid>
AIACC_HOST_DEVICE void narrow_to_one(Grid& grid, const SelectPlan& p) {
  while (p.state->range.shift > 0) {
    const SelectRange range = p.state->range;
    count_candidates_in_range(grid, p, range);
    narrow_range(grid, p, range, p.k, Before::kRange);
  }
}

/// How far down in the sample candidates begin, so that five standard deviations are not too few.
AIACC_HOST_DEVICE inline std::uint32_t rank_in_sample(std::uint32_t k) {
  const std::uint32_t share = k / kSelectSampled + 1;
  return share + static_cast<std::uint32_t>(5.0F * std::sqrt(static_cast<float>(share))) + 16;
}

/// Sets `low` by a sample; 0 if it says nothing.
template <class Grid>
AIACC_HOST_DEVICE void foresee_by_sample(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  const std::uint32_t rank = rank_in_sample(p.k);
  SelectRange range = whole_range(p);
  for (int pass = 0; pass < 2; ++pass) {
    count_sample_in_range(grid, p, range);
    narrow_range(grid, p, range, rank, Before::kRange);
    if (s.range.shift < 0) {
      break;
    }
    range = s.range;
  }
  grid.one([&] { s.low = s.range.shift < 0 ? 0 : s.range.base; });
}

/// Narrows the range by passes over everything until there is room for what reaches it, or it is a
/// single magnitude.
template <class Grid>
AIACC_HOST_DEVICE void narrow_by_passes(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  grid.one([&] { s.range = whole_range(p); });
  do {
    const SelectRange range = s.range;
    count_strips_in_range(grid, p, range);
    narrow_range(grid, p, range, p.k, Before::kRange);
  } while (s.range.shift > 0 && s.range.above + s.range.inside > p.room);
  grid.one([&] { s.finite = s.largest < kNotFinite ? 1 : 0; });
}

/// Sets what candidates have to reach. False if it says nothing, or there is no room for them.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE bool foresee(Grid& grid, const SelectPlan& p, Foresight way) {
  SelectState& s = *p.state;
  switch (way) {
    case Foresight::kTrack:  // the step has begun with it
      return s.low != 0;
    case Foresight::kSample:
      if (p.count < kSelectLeastSampled) {
        return false;
      }
      foresee_by_sample(grid, p);
      return s.low != 0;
    case Foresight::kPasses:
      narrow_by_passes(grid, p);
      return s.finite != 0 && s.range.above + s.range.inside <= p.room;
  }
  return false;
}

/// The first of the ways from `way` on that says something, or the last.
template <class Grid>
AIACC_HOST_DEVICE void foresee_from(Grid& grid, const SelectPlan& p, Foresight way) {
  SelectState& s = *p.state;
  bool says = foresee(grid, p, way);
  while (!says && way != Foresight::kPasses) {
    way = way == Foresight::kTrack ? Foresight::kSample : Foresight::kPasses;
    says = foresee(grid, p, way);
  }
  grid.one([&] {
    s.way = way;
    s.scans = says ? 1 : 0;
    if (way == Foresight::kPasses) {  // else it is there, and others may still read it
      s.low = s.range.base;
    }
    s.scanned = way == Foresight::kPasses ? s.range : near_range(s.low);
  });
}

/// Finds the k-th largest among the candidates.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void find_in_candidates(Grid& grid, const SelectPlan& p) {
  if (p.state->range.shift < 0) {  // more than an octave away
    const SelectRange whole = whole_range(p);
    count_candidates_in_range(grid, p, whole);
    narrow_range(grid, p, whole, p.k, Before::kRange);
  }
  narrow_to_one(grid, p);
}

/// Draws which ties are taken, and ends the step in the state.
AIACC_HOST_DEVICE inline void decide(const SelectPlan& p) {
  SelectState& s = *p.state;
  const float threshold = raw_float(s.range.base);
  s.run = p.k - s.range.above;
  s.before_run =
      static_cast<std::uint32_t>(random_below(p.seed, std::uint64_t{s.range.inside - s.run} + 1));
  const bool fell_back =
      p.mode == SelectMode::kTracked && s.scan != Scan::kHit && s.scan != Scan::kNone;
  s.result = Selection{true, fell_back, threshold};
  if (p.mode == SelectMode::kTracked) {
    s.track = after_step(s.track, s.scan, threshold, p.k, s.seen);
  }
}

/// The first kernel: what candidates have to reach.
template <class Grid>
AIACC_HOST_DEVICE void begin_selection(Grid& grid, const SelectPlan& p) {
  begin_step(grid, p);
  foresee_from(grid, p, Foresight::kTrack);
}

/// The second kernel.
template <bool kAhead = true, class Grid>
AIACC_HOST_DEVICE void scan_for_candidates(Grid& grid, const SelectPlan& p) {
  if (p.state->scans != 0) {
    scan_strips<kAhead>(grid, p, p.state->low, p.state->scanned);
  }
}

/// The same as a part of the third one, which has no registers to read ahead.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void scan_again(Grid& grid, const SelectPlan& plan) {
  const SelectPlan p = plan;  // in registers: nothing that is written may change it
  scan_for_candidates<false>(grid, p);
}

/// The third kernel: finds the k-th largest, by other ways if need be, and takes what reaches it.
template <class Grid>
AIACC_HOST_DEVICE void finish_selection(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  for (;;) {
    const Foresight way = s.way;
    if (s.scans != 0) {
      const SelectRange range = s.scanned;
      const Before before = way == Foresight::kPasses ? Before::kScan : Before::kRest;
      narrow_range(grid, p, range, p.k, before);
    }
    if (s.collected != 0 || s.finite == 0 || way == Foresight::kPasses) {
      break;
    }
    foresee_from(grid, p, way == Foresight::kTrack ? Foresight::kSample : Foresight::kPasses);
    scan_again(grid, p);
  }
  if (s.finite == 0) {
    write_not_finite(grid, p);
    settle_residual(grid, p);
    return;
  }
  if (s.collected != 0) {
    find_in_candidates(grid, p);
  }
  grid.one([&] { decide(p); });
  if (s.collected != 0) {
    count_candidates(grid, p);
    settle_residual(grid, p);
    take_of_candidates(grid, p);
  } else {
    count_strips(grid, p);
    take_of_strips(grid, p);
  }
}

}  // namespace
}  // namespace aiacc
