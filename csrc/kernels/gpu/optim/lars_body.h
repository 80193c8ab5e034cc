#pragma once

// The bodies of the kernels of lars_update.h, for lars_update.cu and lars_update.cc. Elements are
// updated to the bits of ../../lars.h, if the ratio is the same: norms are added up in another
// order.

#include <cstdint>

#include "csrc/kernels/gpu/grid.h"
#include "csrc/kernels/gpu/optim/lars_update.h"
#include "csrc/kernels/lars_factors.h"

namespace aiacc {
namespace {

using LarsShared = OptimShared<MomentumFactors>;

AIACC_HOST_DEVICE inline void add_square(float& sum, float value) {
  sum = sum + product(value, value);
}

/// What one thread adds of a chunk.
AIACC_HOST_DEVICE inline void add_chunk(const LarsItem& item,
                                        std::uint32_t chunk,
                                        std::uint32_t number,
                                        SquareSums& sums) {
  const ChunkRange range = range_of(item, chunk);
  float of_weights = 0;
  float of_gradient = 0;
  std::uint64_t rest = range.begin + number;
  if (item.is_aligned != 0) {
    const OptimPack* weights = packs(item.weights + range.begin);
    const OptimPack* gradient = packs(item.gradient + range.begin);
    const auto count = static_cast<std::uint32_t>(range.end - range.begin) / 4;
    OptimPack w[kOptimPacks] = {};
    OptimPack g[kOptimPacks] = {};
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kOptimPacks; ++u) {
      const std::uint32_t at = number + u * kOptimThreads;
      if (at < count) {
        w[u] = weights[at];
        g[u] = gradient[at];
      }
    }
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kOptimPacks; ++u) {
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < 4; ++e) {
        add_square(of_weights, w[u].at[e]);
        add_square(of_gradient, g[u].at[e]);
      }
    }
    rest += std::uint64_t{count} * 4;
  }
  for (std::uint64_t i = rest; i < range.end; i += kOptimThreads) {
    add_square(of_weights, item.weights[i]);
    add_square(of_gradient, item.gradient[i]);
  }
  sums.weights += static_cast<double>(of_weights);
  sums.change += static_cast<double>(of_gradient);
}

/// What block `block` of `batch.norm_blocks` does for the norms: it leaves its part of the sums of
/// every tensor of its share.
template <class Block, class Batch>
AIACC_HOST_DEVICE void lars_norms_share(Block& block, const Batch& batch) {
  each_item(batch,
            block.number(),
            batch.norm_blocks,
            [&](std::uint32_t number_of_item, std::uint32_t first, std::uint32_t last) {
              const LarsItem& item = batch.item[number_of_item];
              block.each([&](std::uint32_t number, OptimThread& thread) {
                SquareSums sums = {};
                for (std::uint32_t chunk = first; chunk < last; ++chunk) {
                  add_chunk(item, chunk, number, sums);
                }
                thread.sums = sums;
              });
              leave_sums(block, batch.sums, number_of_item);
            });
}

/// The update of an element; `kept` is what there is of momentum.
template <bool kMomentum>
AIACC_HOST_DEVICE inline void update_element(float& weight,
                                             float gradient,
                                             float& kept,
                                             const MomentumFactors& f) {
  const float change = product(f.gradient, gradient) + product(f.weight, weight);
  float step = product(f.step_by_change, change);
  if constexpr (kMomentum) {
    kept = product(f.kept, kept) + product(f.enters, change);
    step = step + product(f.step_by_momentum, kept);
  }
  weight = weight - step;
}

/// What one thread does of a chunk. With kept 0 the momentum is not read.
template <bool kMomentum>
AIACC_HOST_DEVICE void update_chunk(const LarsItem& item,
                                    std::uint32_t chunk,
                                    std::uint32_t number,
                                    const MomentumFactors& f) {
  const ChunkRange range = range_of(item, chunk);
  const bool reads = kMomentum && f.kept != 0;
  std::uint64_t rest = range.begin + number;
  if (item.is_aligned != 0) {
    OptimPack* weights = packs(item.weights + range.begin);
    const OptimPack* gradient = packs(item.gradient + range.begin);
    OptimPack* momentum = kMomentum ? packs(item.momentum + range.begin) : nullptr;
    const auto count = static_cast<std::uint32_t>(range.end - range.begin) / 4;
    OptimPack w[kOptimPacks] = {};
    OptimPack g[kOptimPacks] = {};
    OptimPack m[kOptimPacks] = {};
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kOptimPacks; ++u) {
      const std::uint32_t at = number + u * kOptimThreads;
      if (at < count) {
        w[u] = weights[at];
        g[u] = gradient[at];
        if (reads) {
          m[u] = momentum[at];
        }
      }
    }
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kOptimPacks; ++u) {
      const std::uint32_t at = number + u * kOptimThreads;
      if (at < count) {
        AIACC_UNROLL
        for (std::uint32_t e = 0; e < 4; ++e) {
          update_element<kMomentum>(w[u].at[e], g[u].at[e], m[u].at[e], f);
        }
        weights[at] = w[u];
        if constexpr (kMomentum) {
          momentum[at] = m[u];
        }
      }
    }
    rest += std::uint64_t{count} * 4;
  }
  for (std::uint64_t i = rest; i < range.end; i += kOptimThreads) {
    float weight = item.weights[i];
    float kept = reads ? item.momentum[i] : 0.0F;
    update_element<kMomentum>(weight, item.gradient[i], kept, f);
    item.weights[i] = weight;
    if constexpr (kMomentum) {
      item.momentum[i] = kept;
    }
  }
}

/// What block `block` of `blocks` does for the update: the factors of every tensor of its share,
/// by the sums of all blocks, then the elements.
template <class Block, class Batch>
AIACC_HOST_DEVICE void lars_update_share(Block& block, const Batch& batch, std::uint32_t blocks) {
  each_item_backwards(
      batch,
      block.number(),
      blocks,
      [&](std::uint32_t number_of_item, std::uint32_t first, std::uint32_t last) {
        const LarsItem& item = batch.item[number_of_item];
        const bool has_momentum = item.momentum != nullptr;
        auto& shared = block.shared();
        if (batch.options.adapt) {
          gather_sums(block, batch, number_of_item, batch.sums, batch.norm_blocks);
        }
        block.each([&](std::uint32_t number, OptimThread&) {
          if (number == 0) {
            LarsOptions options = batch.options;
            options.lr = batch.lr != nullptr ? static_cast<double>(*batch.lr) : options.lr;
            const double ratio =
                options.adapt ? lars_ratio(shared.total.weights, shared.total.change, options) : 1;
            shared.factors = lars_factors(ratio, options, has_momentum);
          }
        });
        block.each([&](std::uint32_t number, OptimThread&) {
          const MomentumFactors factors = shared.factors;
          for (std::uint32_t chunk = last; chunk > first; --chunk) {
            if (has_momentum) {
              update_chunk<true>(item, chunk - 1, number, factors);
            } else {
              update_chunk<false>(item, chunk - 1, number, factors);
            }
          }
        });
      });
}

}  // namespace
}  // namespace aiacc
