#pragma once

// What the kernels of optimizers share: a list of tensors as one run of chunks, of which every
// block has an equal, unbroken share, and sums over a tensor that come out alike in every run.
//
// A batch has `items` tensors, none of them empty, `chunks` chunks in all, and item[i].first_chunk.

#include <cstdint>

#include "csrc/kernels/host_device.h"

namespace aiacc {

/// Threads of a block, fixed for all kernels of this family.
inline constexpr std::uint32_t kOptimThreads = 256;
/// Packs of 4 elements that a thread has in flight of every array, to hide the latency of memory.
inline constexpr std::uint32_t kOptimPacks = 2;
/// Elements of a chunk.
inline constexpr std::uint32_t kOptimChunk = kOptimThreads * kOptimPacks * 4;
/// Blocks of a launch: more than any GPU runs at a time, so that the memory for sums has a bound.
inline constexpr std::uint32_t kMostOptimBlocks = 4096;

/// What a tensor's ratio follows from, summed in double. 8 elements of a thread are summed in
/// float, so that magnitudes above 1e18 are infinite, as they are for torch's norms.
struct SquareSums {
  double weights;
  double change;  ///< LARS: gradient
};

struct OptimThread {
  SquareSums sums;
};

/// Threads that add up what all threads have, before one adds up what these have.
inline constexpr std::uint32_t kOptimLanes = 16;

/// Memory of a block.
template <class Factors>
struct OptimShared {
  SquareSums sums[kOptimThreads];
  SquareSums of_lane[kOptimLanes];
  SquareSums total;
  Factors factors;  ///< of the tensor that the block is at
};

/// Four elements, one access.
struct alignas(16) OptimPack {
  float at[4];
};
AIACC_HOST_DEVICE inline OptimPack* packs(float* at) { return reinterpret_cast<OptimPack*>(at); }
AIACC_HOST_DEVICE inline const OptimPack* packs(const float* at) {
  return reinterpret_cast<const OptimPack*>(at);
}

/// Where the share of a block begins; that of block `blocks` is the end. There are no more blocks
/// than chunks.
AIACC_HOST_DEVICE inline std::uint32_t first_chunk_of(std::uint32_t block,
                                                      std::uint32_t blocks,
                                                      std::uint32_t chunks) {
  return static_cast<std::uint32_t>(std::uint64_t{chunks} * block / blocks);
}

/// The block whose share has a chunk.
AIACC_HOST_DEVICE inline std::uint32_t block_of(std::uint32_t chunk,
                                                std::uint32_t blocks,
                                                std::uint32_t chunks) {
  return static_cast<std::uint32_t>(((std::uint64_t{chunk} + 1) * blocks - 1) / chunks);
}

/// The tensor that a chunk is of.
template <class Batch>
AIACC_HOST_DEVICE std::uint32_t item_of(const Batch& batch, std::uint32_t chunk) {
  std::uint32_t low = 0;
  std::uint32_t high = batch.items;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (batch.item[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The chunk after the last one of a tensor.
template <class Batch>
AIACC_HOST_DEVICE std::uint32_t end_of(const Batch& batch, std::uint32_t item) {
  return item + 1 < batch.items ? batch.item[item + 1].first_chunk : batch.chunks;
}

/// Calls visit(item, first, last) for the tensors of a block's share, from the first to the last
/// one; chunks are numbered from the tensor's first.
template <class Batch, class Visit>
AIACC_HOST_DEVICE void each_item(const Batch& batch,
                                 std::uint32_t block,
                                 std::uint32_t blocks,
                                 Visit visit) {
  const std::uint32_t last = first_chunk_of(block + 1, blocks, batch.chunks);
  std::uint32_t chunk = first_chunk_of(block, blocks, batch.chunks);
  for (std::uint32_t item = item_of(batch, chunk); chunk < last; ++item) {
    const std::uint32_t end = end_of(batch, item);
    const std::uint32_t stop = end < last ? end : last;
    visit(item, chunk - batch.item[item].first_chunk, stop - batch.item[item].first_chunk);
    chunk = stop;
  }
}

/// The same from the last to the first one: what was read last may still be in the cache.
template <class Batch, class Visit>
AIACC_HOST_DEVICE void each_item_backwards(const Batch& batch,
                                           std::uint32_t block,
                                           std::uint32_t blocks,
                                           Visit visit) {
  const std::uint32_t first = first_chunk_of(block, blocks, batch.chunks);
  std::uint32_t last = first_chunk_of(block + 1, blocks, batch.chunks);
  for (std::uint32_t item = item_of(batch, last - 1); last > first; --item) {
    const std::uint32_t begin = batch.item[item].first_chunk;
    const std::uint32_t start = begin > first ? begin : first;
    visit(item, start - begin, last - begin);
    last = start;
  }
}

/// Elements of a chunk of `item`, numbered from the tensor's first.
struct ChunkRange {
  std::uint64_t begin;
  std::uint64_t end;
};
template <class Item>
AIACC_HOST_DEVICE ChunkRange range_of(const Item& item, std::uint32_t chunk) {
  const std::uint64_t begin = std::uint64_t{chunk} * kOptimChunk;
  const std::uint64_t end = begin + kOptimChunk;
  return {begin, end < item.count ? end : item.count};
}

/// shared.total becomes the sum over all threads, in an order that depends on nothing.
template <class Block>
AIACC_HOST_DEVICE void add_up(Block& block) {
  auto& shared = block.shared();
  block.each([&](std::uint32_t number, OptimThread& thread) { shared.sums[number] = thread.sums; });
  block.each([&](std::uint32_t number, OptimThread&) {
    if (number < kOptimLanes) {
      SquareSums sum = {};
      for (std::uint32_t i = number; i < kOptimThreads; i += kOptimLanes) {
        sum.weights += shared.sums[i].weights;
        sum.change += shared.sums[i].change;
      }
      shared.of_lane[number] = sum;
    }
  });
  block.each([&](std::uint32_t number, OptimThread&) {
    if (number == 0) {
      SquareSums sum = {};
      for (std::uint32_t i = 0; i < kOptimLanes; ++i) {
        sum.weights += shared.of_lane[i].weights;
        sum.change += shared.of_lane[i].change;
      }
      shared.total = sum;
    }
  });
}

/// A block's part of the sums of a tensor has a place of its own: both numbers together grow from
/// each pair to the next, and there are at most items + blocks - 1.
AIACC_HOST_DEVICE inline std::uint32_t place_of(std::uint32_t block, std::uint32_t item) {
  return block + item;
}

/// Leaves what the threads of a block have of the sums of a tensor.
template <class Block>
AIACC_HOST_DEVICE void leave_sums(Block& block, SquareSums* sums, std::uint32_t item) {
  add_up(block);
  block.each([&](std::uint32_t number, OptimThread&) {
    if (number == 0) {
      sums[place_of(block.number(), item)] = block.shared().total;
    }
  });
}

/// shared.total becomes the sums of a tensor, of which `blocks` blocks have left parts in `sums`.
template <class Block, class Batch>
AIACC_HOST_DEVICE void gather_sums(Block& block,
                                   const Batch& batch,
                                   std::uint32_t item,
                                   const SquareSums* sums,
                                   std::uint32_t blocks) {
  const std::uint32_t first = block_of(batch.item[item].first_chunk, blocks, batch.chunks);
  const std::uint32_t last = block_of(end_of(batch, item) - 1, blocks, batch.chunks);
  block.each([&](std::uint32_t number, OptimThread& thread) {
    thread.sums = {};
    for (std::uint32_t of = first + number; of <= last; of += kOptimThreads) {
      const SquareSums& part = sums[place_of(of, item)];
      thread.sums.weights += part.weights;
      thread.sums.change += part.change;
    }
  });
  add_up(block);
}

}  // namespace aiacc
