#pragma once

// MSTopK in the kernel of selection.h: ../selection/mstopk.h for a grid.

#include <cstdint>

#include "csrc/kernels/gpu/selection_strips.h"
#include "csrc/kernels/selection/bisection.h"

namespace aiacc {
namespace {

/// Eight sums for every kSumElements, added in order; those of a group in order; all groups in
/// order. That is the order of measure_magnitudes.
template <class Grid>
AIACC_HOST_DEVICE void measure(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  const std::uint32_t chunks = p.count / kSumElements + (p.count % kSumElements != 0 ? 1 : 0);
  constexpr std::uint32_t kChunks = kSelectThreads / 8;  // of a block at a time
  grid.blocks([&](auto& block) {
    double* sums = block.shared().sums;
    block.each([](std::uint32_t, SelectThread& thread) { thread.largest = 0; });
    for (std::uint64_t first = std::uint64_t{block.number()} * kChunks; first < chunks;
         first += std::uint64_t{grid.size()} * kChunks) {
      block.each([&](std::uint32_t number, SelectThread& thread) {
        const std::uint64_t begin = (first + number / 8) * kSumElements;
        const std::uint64_t end = begin + kSumElements < p.count ? begin + kSumElements : p.count;
        double sum = 0.0;
        for (std::uint64_t i = begin + number % 8; i < end; i += 8) {
          const float fresh = product(p.factor, p.in[i]);
          const float t = p.residual != nullptr ? fresh + p.residual[i] : fresh;
          thread.largest = larger(thread.largest, magnitude_of(t));
          sum += static_cast<double>(raw_float(magnitude_of(t)));
        }
        sums[number] = sum;
      });
      block.each([&](std::uint32_t number, SelectThread&) {
        if (number % 8 == 0 && first + number / 8 < chunks) {
          double sum = 0.0;
          for (std::uint32_t part = 0; part < 8; ++part) {
            sum += sums[number + part];
          }
          p.sums[first + number / 8] = sum;
        }
      });
    }
    block.each([&](std::uint32_t, SelectThread& thread) { raise_to(s.largest, thread.largest); });
  });
  grid.blocks([&](auto& block) {
    if (block.number() != 0) {
      return;
    }
    const std::uint32_t groups = (chunks + kSumGroup - 1) / kSumGroup;
    block.each([&](std::uint32_t number, SelectThread&) {
      for (std::uint32_t group = number; group < groups; group += kSelectThreads) {
        double sum = 0.0;
        for (std::uint32_t i = group * kSumGroup; i < chunks && i < (group + 1) * kSumGroup; ++i) {
          sum += p.sums[i];
        }
        p.sums[group * kSumGroup] = sum;  // no other thread reads that
      }
    });
    block.each([&](std::uint32_t number, SelectThread&) {
      if (number == 0) {
        double sum = 0.0;
        for (std::uint32_t group = 0; group < groups; ++group) {
          sum += p.sums[group * kSumGroup];
        }
        s.mean = sum / static_cast<double>(p.count);
        s.finite = s.largest < kNotFinite ? 1 : 0;
      }
    });
  });
}

/// Counts a thread's elements by the last of the thresholds that each reaches.
AIACC_HOST_DEVICE inline void count_by_thresholds(const SelectPlan& p,
                                                  std::uint32_t parts,
                                                  const SelectThread& thread,
                                                  std::uint32_t* bins) {
  const std::uint32_t least = magnitude_of(p.thresholds[1]);
  AIACC_UNROLL
  for (std::uint32_t i = 0; i < kSelectElements; ++i) {
    const std::uint32_t bits = magnitude_of(thread.t[i]);
    if ((thread.valid >> i & 1) != 0 && bits >= least) {
      std::uint32_t low = 1;
      std::uint32_t high = parts;
      while (high - low > 1) {
        const std::uint32_t middle = (low + high) / 2;
        const bool reaches = bits >= magnitude_of(p.thresholds[middle]);
        low = reaches ? middle : low;
        high = reaches ? high : middle;
      }
      add_to(bins[low], 1);
    }
  }
}

/// Sets the bracket of kBisections halvings, kSelectLevels to a pass.
template <class Grid>
AIACC_HOST_DEVICE AIACC_NOINLINE void find_by_bisection(Grid& grid, const SelectPlan& p) {
  SelectState& s = *p.state;
  measure(grid, p);
  if (s.finite == 0) {
    return;
  }
  grid.one([&] {
    s.left = 0.0;
    s.right = 1.0;
    s.high_bits = kNotFinite;
    s.low_bits = 0;
    s.above = 0;
    s.reached = p.count;
  });
  for (int done = 0; done < kBisections; done += kSelectLevels) {
    const int now = kBisections - done < kSelectLevels ? kBisections - done : kSelectLevels;
    const std::uint32_t parts = 1U << now;
    grid.blocks([&](auto& block) {
      block.each([&](std::uint32_t number, SelectThread&) {
        for (std::uint32_t i = block.number() * kSelectThreads + number; i < parts;
             i += grid.size() * kSelectThreads) {
          const double position = position_of(s.left, s.right, i, parts);
          p.thresholds[i] = threshold_at(position, s.mean, raw_float(s.largest));
        }
      });
    });
    grid.blocks([&](auto& block) {
      clear_bins(block, parts);
      block.warps([&](auto& warp) {
        const std::uint32_t of = number_of(grid, block, warp);
        each_strip(warp, of, grid.size() * kWarps, p, [&](std::uint32_t) {
          warp.each([&](std::uint32_t, SelectThread& thread) {
            count_by_thresholds(p, parts, thread, block.shared().bins);
          });
        });
      });
      add_bins(block, p.bins, parts);
    });
    grid.one([&] {
      for (std::uint32_t i = parts - 1; i > 1; --i) {
        p.bins[i - 1] += p.bins[i];
      }
      Bisection bisection = {
          s.left, s.right, raw_float(s.high_bits), raw_float(s.low_bits), s.above, s.reached};
      halve(bisection, parts, p.k, p.bins, p.thresholds);
      s.left = bisection.left;
      s.right = bisection.right;
      s.high_bits = raw_bits(bisection.high);
      s.low_bits = raw_bits(bisection.low);
      s.above = static_cast<std::uint32_t>(bisection.above);
      s.reached = static_cast<std::uint32_t>(bisection.reached);
      for (std::uint32_t i = 0; i < parts; ++i) {
        p.bins[i] = 0;
      }
    });
  }
}

}  // namespace
}  // namespace aiacc
