#include "csrc/engines/coded_all_reduce.h"

#include <algorithm>
#include <numeric>

#include "csrc/engines/coded_parts.h"
#include "csrc/engines/engine.h"
#include "csrc/kernels/selection/random_sample.h"

namespace aiacc {
namespace {

constexpr std::size_t kMostTracks = 4096;

std::byte* room(std::vector<std::byte>& memory, std::size_t bytes) {
  if (memory.size() < bytes) {
    memory.resize(bytes);
  }
  return memory.data();
}

void in_blocks(Engine& engine,
               int lane,
               const CodedReduce& reduce,
               std::size_t rank,
               std::size_t ranks,
               CodedMemory& memory) {
  const BlockCode code = reduce.coding.block_code();
  const PerRank shards = shards_of(reduce.count, code.block, ranks);
  const PerRank bytes = encoded_shards(shards, code);
  const std::size_t first =
      std::accumulate(shards.begin(), shards.begin() + static_cast<std::ptrdiff_t>(rank), 0UL);
  const std::size_t total = std::accumulate(bytes.begin(), bytes.end(), 0UL);
  const bool stochastic = reduce.coding.stochastic();
  std::byte* sent = room(memory.sent, total);
  std::byte* received = room(memory.received, std::max(total, bytes[rank] * ranks));
  encode_blocks(
      sent, reduce.values, reduce.residual, reduce.count, code, 1.0F, {stochastic, reduce.seed}, 0);
  engine.all_to_all(lane, sent, received, bytes, PerRank(ranks, bytes[rank]));
  float* sum = reduce.values + first;
  for (std::size_t from = 0; from < ranks; ++from) {
    const std::byte* part = received + from * bytes[rank];
    if (from == 0) {
      decode_blocks(sum, part, shards[rank], code, 1.0F);
    } else {
      decode_add_blocks(sum, part, shards[rank], code);
    }
  }
  encode_blocks(sent,
                sum,
                reduce.residual == nullptr ? nullptr : reduce.residual + first,
                shards[rank],
                code,
                1.0F,
                {stochastic, reduce.seed ^ kSeedOfSum},
                first);
  engine.all_gather(lane, sent, received, bytes);
  decode_blocks(reduce.values, received, reduce.count, code, 1.0F);
}

void of_largest(
    Engine& engine, int lane, const CodedReduce& reduce, std::size_t ranks, CodedMemory& memory) {
  const std::size_t selected = reduce.coding.selected(reduce.count);
  const std::size_t bytes = pairs_bytes(selected);
  std::byte* sent = room(memory.sent, bytes);
  if (memory.tracks.size() >= kMostTracks) {
    memory.tracks.clear();  // of buffers that may be gone
  }
  select_largest(sent,
                 reduce.values,
                 reduce.residual,
                 reduce.count,
                 selected,
                 1.0F,
                 reduce.coding.mode(),
                 reduce.seed,
                 memory.tracks[reduce.residual],
                 memory.selection);
  std::fill_n(reduce.values, reduce.count, 0.0F);
  if (pairs_are_longer(selected, reduce.count, ranks)) {
    scatter_add(reduce.values, sent, selected, reduce.count, 1.0F);
    engine.all_reduce(
        lane, reduce.values, reduce.values, reduce.count, {DataType::kFloat32, ReduceOp::kSum});
    return;
  }
  std::byte* received = room(memory.received, bytes * ranks);
  engine.all_gather(lane, sent, received, PerRank(ranks, bytes));
  for (std::size_t from = 0; from < ranks; ++from) {
    scatter_add(reduce.values, received + from * bytes, selected, reduce.count, 1.0F);
  }
}

void of_random(Engine& engine, int lane, const CodedReduce& reduce, CodedMemory& memory) {
  const RandomSample places(reduce.count, reduce.coding.selected(reduce.count), reduce.common_seed);
  const bool weighted = reduce.coding.unbiased();
  auto* sample = reinterpret_cast<float*>(room(memory.sent, places.size() * sizeof(float)));
  take_sample(sample, reduce.values, reduce.residual, places, weighted);
  engine.all_reduce(lane, sample, sample, places.size(), {DataType::kFloat32, ReduceOp::kSum});
  put_sample(reduce.values, sample, places);
}

}  // namespace

void coded_all_reduce(
    Engine& engine, int lane, const CodedReduce& reduce, int rank, int ranks, CodedMemory& memory) {
  if (reduce.count == 0 || engine.all_reduce_coded(lane, reduce, memory)) {
    return;
  }
  if (reduce.coding.in_blocks()) {
    in_blocks(engine,
              lane,
              reduce,
              static_cast<std::size_t>(rank),
              static_cast<std::size_t>(ranks),
              memory);
  } else if (reduce.coding.format == WireFormat::kRandom) {
    of_random(engine, lane, reduce, memory);
  } else {
    of_largest(engine, lane, reduce, static_cast<std::size_t>(ranks), memory);
  }
}

}  // namespace aiacc
