#pragma once

// The bodies of the kernels of lamb_update.h, for lamb_update.cu and lamb_update.cc.

#include <cmath>
#include <cstdint>

#include "csrc/kernels/gpu/grid.h"
#include "csrc/kernels/gpu/optim/lamb_update.h"

namespace aiacc {
namespace {

/// What an element's step multiplies: mean = kept1 mean + enters1 g and so for the square, with
/// g = clip gradient; update = mean_factor mean / (root_factor sqrt(square) + eps) + decay w; then
/// w -= step update.
struct LambFactors {
  float clip;
  float kept1;
  float enters1;
  float kept2;
  float enters2;
  float mean_factor;
  float root_factor;
  float eps;
  float decay;
  float step;
};

using LambShared = OptimShared<LambFactors>;

struct LambCorrections {
  float mean_factor;
  float root_factor;
};

/// What corrects Adam's bias after so many steps: 1 - beta^steps without a difference of near
/// numbers.
AIACC_HOST_DEVICE inline LambCorrections lamb_corrections(double steps,
                                                          double log_beta1,
                                                          double log_beta2) {
  return {static_cast<float>(-1 / std::expm1(steps * log_beta1)),
          static_cast<float>(1 / std::sqrt(-std::expm1(steps * log_beta2)))};
}

/// The ratio of a tensor, by the sums of the squares of its weights and of its update.
AIACC_HOST_DEVICE inline double lamb_ratio(const SquareSums& sums, const LambOptions& options) {
  double ratio = 1;
  if (sums.weights > 0 && sums.change > 0) {
    ratio = std::sqrt(sums.weights) / std::sqrt(sums.change);
  }
  ratio = ratio < options.least_ratio ? options.least_ratio : ratio;
  return ratio > options.largest_ratio ? options.largest_ratio : ratio;
}

template <class Batch>
AIACC_HOST_DEVICE LambFactors lamb_factors(const Batch& batch, const LambItem& item, double ratio) {
  const LambOptions& options = batch.options;
  const double lr = batch.lr != nullptr ? static_cast<double>(*batch.lr) : options.lr;
  LambFactors factors;
  factors.clip = batch.clip != nullptr ? *batch.clip : 1.0F;
  factors.kept1 = static_cast<float>(options.beta1);
  factors.enters1 = static_cast<float>(1 - options.beta1);
  factors.kept2 = static_cast<float>(options.beta2);
  factors.enters2 = static_cast<float>(1 - options.beta2);
  factors.mean_factor = item.mean_factor;
  factors.root_factor = item.root_factor;
  if (item.steps != nullptr && options.bias_correction) {
    const LambCorrections corrections =
        lamb_corrections(static_cast<double>(*item.steps), batch.log_beta1, batch.log_beta2);
    factors.mean_factor = corrections.mean_factor;
    factors.root_factor = corrections.root_factor;
  }
  factors.eps = static_cast<float>(options.eps);
  factors.decay = static_cast<float>(options.weight_decay);
  factors.step = static_cast<float>(product(lr, ratio));
  return factors;
}

AIACC_HOST_DEVICE inline void move_means(float& mean,
                                         float& square,
                                         float gradient,
                                         const LambFactors& f) {
  const float g = product(f.clip, gradient);
  mean = product(f.kept1, mean) + product(f.enters1, g);
  square = product(f.kept2, square) + product(f.enters2, product(g, g));
}

AIACC_HOST_DEVICE inline float update_of(float weight,
                                         float mean,
                                         float square,
                                         const LambFactors& f) {
  const float root = product(f.root_factor, std::sqrt(square)) + f.eps;
  return product(f.mean_factor, mean) / root + product(f.decay, weight);
}

/// An element in the first kernel: means, and its part of the norms, or the step at once.
template <bool kAdapt>
AIACC_HOST_DEVICE inline void first_element(float& weight,
                                            float gradient,
                                            float& mean,
                                            float& square,
                                            const LambFactors& f,
                                            float& of_weights,
                                            float& of_updates) {
  move_means(mean, square, gradient, f);
  const float update = update_of(weight, mean, square, f);
  if constexpr (kAdapt) {
    of_weights = of_weights + product(weight, weight);
    of_updates = of_updates + product(update, update);
  } else {
    weight = weight - product(f.step, update);
  }
}

/// What one thread does of a chunk in the first kernel.
template <bool kAdapt>
AIACC_HOST_DEVICE void first_chunk(const LambItem& item,
                                   std::uint32_t chunk,
                                   std::uint32_t number,
                                   const LambFactors& f,
                                   SquareSums& sums) {
  const ChunkRange range = range_of(item, chunk);
  float of_weights = 0;
  float of_updates = 0;
  std::uint64_t rest = range.begin + number;
  if (item.is_aligned != 0) {
    OptimPack* weights = packs(item.weights + range.begin);
    const OptimPack* gradient = packs(item.gradient + range.begin);
    OptimPack* mean = packs(item.mean + range.begin);
    OptimPack* square = packs(item.square + range.begin);
    const auto count = static_cast<std::uint32_t>(range.end - range.begin) / 4;
    OptimPack w[kOptimPacks] = {};
    OptimPack g[kOptimPacks] = {};
    OptimPack m[kOptimPacks] = {};
    OptimPack v[kOptimPacks] = {};
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kOptimPacks; ++u) {
      const std::uint32_t at = number + u * kOptimThreads;
      if (at < count) {
        w[u] = weights[at];
        g[u] = gradient[at];
        m[u] = mean[at];
        v[u] = square[at];
      }
    }
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kOptimPacks; ++u) {
      const std::uint32_t at = number + u * kOptimThreads;
      if (at < count) {
        AIACC_UNROLL
        for (std::uint32_t e = 0; e < 4; ++e) {
          first_element<kAdapt>(
              w[u].at[e], g[u].at[e], m[u].at[e], v[u].at[e], f, of_weights, of_updates);
        }
        mean[at] = m[u];
        square[at] = v[u];
        if constexpr (!kAdapt) {
          weights[at] = w[u];
        }
      }
    }
    rest += std::uint64_t{count} * 4;
  }
  for (std::uint64_t i = rest; i < range.end; i += kOptimThreads) {
    float weight = item.weights[i];
    float mean = item.mean[i];
    float square = item.square[i];
    first_element<kAdapt>(weight, item.gradient[i], mean, square, f, of_weights, of_updates);
    item.mean[i] = mean;
    item.square[i] = square;
    if constexpr (!kAdapt) {
      item.weights[i] = weight;
    }
  }
  sums.weights += static_cast<double>(of_weights);
  sums.change += static_cast<double>(of_updates);
}

/// What one thread does of a chunk in the second kernel, which computes updates anew: memory for
/// them would be read and written, too.
AIACC_HOST_DEVICE inline void second_chunk(const LambItem& item,
                                           std::uint32_t chunk,
                                           std::uint32_t number,
                                           const LambFactors& f) {
  const ChunkRange range = range_of(item, chunk);
  std::uint64_t rest = range.begin + number;
  if (item.is_aligned != 0) {
    OptimPack* weights = packs(item.weights + range.begin);
    const OptimPack* mean = packs(item.mean + range.begin);
    const OptimPack* square = packs(item.square + range.begin);
    const auto count = static_cast<std::uint32_t>(range.end - range.begin) / 4;
    OptimPack w[kOptimPacks] = {};
    OptimPack m[kOptimPacks] = {};
    OptimPack v[kOptimPacks] = {};
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kOptimPacks; ++u) {
      const std::uint32_t at = number + u * kOptimThreads;
      if (at < count) {
        w[u] = weights[at];
        m[u] = mean[at];
        v[u] = square[at];
      }
    }
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kOptimPacks; ++u) {
      const std::uint32_t at = number + u * kOptimThreads;
      if (at < count) {
        AIACC_UNROLL
        for (std::uint32_t e = 0; e < 4; ++e) {
          const float update = update_of(w[u].at[e], m[u].at[e], v[u].at[e], f);
          w[u].at[e] = w[u].at[e] - product(f.step, update);
        }
        weights[at] = w[u];
      }
    }
    rest += std::uint64_t{count} * 4;
  }
  for (std::uint64_t i = rest; i < range.end; i += kOptimThreads) {
    const float weight = item.weights[i];
    const float update = update_of(weight, item.mean[i], item.square[i], f);
    item.weights[i] = weight - product(f.step, update);
  }
}

/// What a block of the first kernel does; it leaves its part of the sums of every tensor of its
/// share.
template <class Block, class Batch>
AIACC_HOST_DEVICE void lamb_first_share(Block& block, const Batch& batch) {
  each_item(batch,
            block.number(),
            batch.norm_blocks,
            [&](std::uint32_t number_of_item, std::uint32_t first, std::uint32_t last) {
              const LambItem& item = batch.item[number_of_item];
              auto& shared = block.shared();
              block.each([&](std::uint32_t number, OptimThread&) {
                if (number == 0) {
                  shared.factors = lamb_factors(batch, item, 1);
                }
              });
              block.each([&](std::uint32_t number, OptimThread& thread) {
                const LambFactors factors = shared.factors;
                SquareSums sums = {};
                for (std::uint32_t chunk = first; chunk < last; ++chunk) {
                  if (batch.options.adapt) {
                    first_chunk<true>(item, chunk, number, factors, sums);
                  } else {
                    first_chunk<false>(item, chunk, number, factors, sums);
                  }
                }
                thread.sums = sums;
              });
              if (batch.options.adapt) {
                leave_sums(block, batch.sums, number_of_item);
              }
            });
}

/// What block `block` of `blocks` does in the second kernel.
template <class Block, class Batch>
AIACC_HOST_DEVICE void lamb_second_share(Block& block, const Batch& batch, std::uint32_t blocks) {
  each_item_backwards(batch,
                      block.number(),
                      blocks,
                      [&](std::uint32_t number_of_item, std::uint32_t first, std::uint32_t last) {
                        const LambItem& item = batch.item[number_of_item];
                        auto& shared = block.shared();
                        gather_sums(block, batch, number_of_item, batch.sums, batch.norm_blocks);
                        block.each([&](std::uint32_t number, OptimThread&) {
                          if (number == 0) {
                            shared.factors =
                                lamb_factors(batch, item, lamb_ratio(shared.total, batch.options));
                          }
                        });
                        block.each([&](std::uint32_t number, OptimThread&) {
                          const LambFactors factors = shared.factors;
                          for (std::uint32_t chunk = last; chunk > first; --chunk) {
                            second_chunk(item, chunk - 1, number, factors);
                          }
                        });
                      });
}

}  // namespace
}  // namespace aiacc
