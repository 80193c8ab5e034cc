#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "csrc/engines/engine_context.h"
#include "csrc/kernels/quantise.h"
#include "csrc/kernels/select.h"

namespace aiacc {

// How the ranks divide a coded all-reduce, in host memory and on GPUs alike.

/// Tells what is left to chance in the sum from what is in the parts: to be combined with a seed.
inline constexpr std::uint64_t kSeedOfSum = 0x9e3779b97f4a7c15;

/// Elements of each rank's shard: whole blocks, as equal as they can be, the first ones the
/// largest.
inline PerRank shards_of(std::size_t count, std::size_t block, std::size_t ranks) {
  const std::size_t blocks = (count + block - 1) / block;
  PerRank shards;
  shards.reserve(ranks);
  std::size_t left = count;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t elements = (blocks / ranks + (rank < blocks % ranks ? 1 : 0)) * block;
    shards.push_back(std::min(left, elements));
    left -= shards.back();
  }
  return shards;
}

/// Bytes of those, encoded.
inline PerRank encoded_shards(const PerRank& shards, const BlockCode& code) {
  PerRank bytes;
  bytes.reserve(shards.size());
  for (const std::size_t shard : shards) {
    bytes.push_back(encoded_bytes(shard, code));
  }
  return bytes;
}

/// Whether the pairs of all ranks are longer than what a dense all-reduce sends: beyond the
/// break-even density.
inline bool pairs_are_longer(std::size_t selected, std::size_t count, std::size_t ranks) {
  return pairs_bytes(selected) * ranks > 2 * count * sizeof(float);
}

}  // namespace aiacc
