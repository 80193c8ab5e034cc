// How a HierarchicalEngine moves bytes on two levels.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "csrc/base/error.h"
#include "csrc/engines/coded_all_reduce.h"
#include "csrc/engines/hierarchical/hierarchical_engine.h"
#include "csrc/kernels/reduce.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

/// The most that a block of a gather or scatter has, over all hosts together and for one of them.
constexpr std::size_t kBlockBytes = std::size_t{8} << 20;
constexpr std::size_t kHostBlockBytes = std::size_t{1} << 20;

/// Combines pieces with those of the other hosts, on one lane.
class Column : public CrossHostReduce {
 public:
  Column(Engine* engine, int lane) : engine_(engine), lane_(lane) {}
  void start(int ticket, void* data, std::size_t count, DataType dtype, ReduceOp op) override {
    engine_->start_all_reduce(lane_, ticket, data, count, {dtype, op});
  }
  void finish(int ticket) override { engine_->finish_all_reduce(lane_, ticket); }

 private:
  Engine* const engine_;  ///< null where nothing is called: this rank has no column
  const int lane_;
};

/// Elements of each of `totals` in the block of `most` that begins at `from`.
PerRank block_of(const PerRank& totals, std::size_t from, std::size_t most) {
  PerRank lengths;
  lengths.reserve(totals.size());
  for (const std::size_t total : totals) {
    lengths.push_back(std::min(most, total - std::min(total, from)));
  }
  return lengths;
}

PerRank at(const PerRank& values, const std::vector<int>& ranks) {
  PerRank some;
  some.reserve(ranks.size());
  for (const int rank : ranks) {
    some.push_back(values[static_cast<std::size_t>(rank)]);
  }
  return some;
}

/// The place of a rank among `ranks`, which ascend.
std::size_t index_of(const std::vector<int>& ranks, int rank) {
  return static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) -
                                  ranks.begin());
}

/// Moves what there is of a residual to the values; most often there is nothing.
void take_in(float* values, float* residual, std::size_t count) {
  constexpr std::size_t kBlock = 4096;  // stays in the first-level cache
  static const VectorLevel& level = *runnable_vector_levels().front();
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t some = std::min(kBlock, count - at);
    if (level.largest_magnitude(residual + at, some, DataType::kFloat32) != 0) {
      reduce(values + at, residual + at, some, DataType::kFloat32, ReduceOp::kSum);
      std::fill_n(residual + at, some, 0.0F);
    }
  }
}

void grow(std::vector<std::byte>& memory, std::size_t bytes) {
  if (memory.size() < bytes) {
    memory.resize(bytes);
  }
}

}  // namespace

void HierarchicalEngine::reduce_all(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  Column column(between_.get(), lane);
  inside_->all_reduce_across(lane, send, recv, count, reduction, column, layout_.columns());
}

/// HiTopKComm (Shi et al., MLSys 2021), with any code: reduce-scatter inside the host, the coded
/// all-reduce of each share along its column, all-gather inside. What a rank has kept beyond its
/// share, which was another one when units were others, goes into the sum.
void HierarchicalEngine::reduce_coded(int lane, const CodedReduce& reduce, CodedMemory& memory) {
  PerRank& shares = scratch(lane).shares;
  const std::size_t begin = cut(reduce.count, shares);
  const std::size_t mine = shares[static_cast<std::size_t>(local())];
  if (reduce.residual != nullptr) {
    const std::size_t end = begin + mine;
    take_in(reduce.values, reduce.residual, begin);
    take_in(reduce.values + end, reduce.residual + end, reduce.count - end);
  }
  grow(memory.shard, mine * sizeof(float));
  auto* shard = reinterpret_cast<float*>(memory.shard.data());
  inside_->reduce_scatter(lane, reduce.values, shard, shares, {DataType::kFloat32, ReduceOp::kSum});
  if (between_ != nullptr) {
    CodedReduce part = reduce;
    part.values = shard;
    part.residual = reduce.residual == nullptr ? nullptr : reduce.residual + begin;
    part.count = mine;
    coded_all_reduce(
        *between_, lane, part, layout_.index_in_column(local(), host()), layout_.hosts(), memory);
  }
  for (std::size_t& share : shares) {
    share *= sizeof(float);
  }
  inside_->all_gather(lane, shard, reduce.values, shares);
}

void HierarchicalEngine::spread(int lane, std::byte* buffer, std::size_t bytes, int root) {
  const int from = layout_.host(root);
  if (from == host()) {
    inside_->broadcast(lane, buffer, bytes, layout_.local(root));
  }
  PerRank& shares = scratch(lane).shares;
  std::byte* share = buffer + cut(bytes, shares);
  if (between_ != nullptr) {
    between_->broadcast(lane,
                        share,
                        shares[static_cast<std::size_t>(local())],
                        layout_.index_in_column(local(), from));
  }
  if (from != host()) {
    inside_->all_gather(lane, share, buffer, shares);
  }
}

std::size_t HierarchicalEngine::cut(std::size_t bytes, PerRank& shares) const {
  const auto columns = static_cast<std::size_t>(layout_.columns());
  const auto own = static_cast<std::size_t>(local());
  shares.assign(layout_.ranks_on(host()).size(), 0);
  for (std::size_t column = 0; column < columns; ++column) {
    shares[column] = bytes / columns + (column < bytes % columns ? 1 : 0);
  }
  return std::accumulate(shares.begin(),
                         shares.begin() + static_cast<std::ptrdiff_t>(std::min(own, columns)),
                         std::size_t{0});
}

std::size_t HierarchicalEngine::step(std::size_t element) const {
  const std::size_t bytes =
      std::min(kHostBlockBytes, kBlockBytes / static_cast<std::size_t>(layout_.hosts()));
  return std::max<std::size_t>(1, bytes / element);
}

/// Block by block: along the columns, then each host's parts inside.
void HierarchicalEngine::gather(int lane,
                                const std::byte* send,
                                std::byte* recv,
                                const PerRank& bytes_of) {
  const PerRank starts = offsets_of(bytes_of);
  const std::size_t longest = *std::max_element(bytes_of.begin(), bytes_of.end());
  const std::vector<int> column = layout_.column(local());
  std::vector<std::byte>& arrived = scratch(lane).column;
  std::vector<void*> to(static_cast<std::size_t>(layout_.columns()));
  for (std::size_t from = 0; from < longest; from += step(1)) {
    const PerRank lengths = block_of(bytes_of, from, step(1));
    const PerRank mine = at(lengths, column);
    const PerRank places = offsets_of(mine);
    grow(arrived, places.back() + mine.back());
    const std::size_t begin = std::min(from, bytes_of[static_cast<std::size_t>(rank_)]);
    between_->all_gather(lane, send + begin, arrived.data(), mine);
    for (int number = 0; number < layout_.hosts(); ++number) {
      const std::vector<int>& there = layout_.ranks_on(number);
      for (std::size_t i = 0; i < there.size(); ++i) {
        const auto rank = static_cast<std::size_t>(there[i]);
        to[i] = recv + starts[rank] + std::min(from, bytes_of[rank]);
      }
      const std::size_t index = index_of(column, there[static_cast<std::size_t>(local())]);
      inside_->exchange(lane, arrived.data() + places[index], at(lengths, there), to);
    }
  }
}

/// Block by block: each host's parts inside, then along the columns.
void HierarchicalEngine::scatter(int lane,
                                 const std::byte* send,
                                 std::byte* recv,
                                 const PerRank& counts,
                                 const Reduction& reduction) {
  const std::size_t element = size_of(reduction.dtype);
  const PerRank starts = offsets_of(counts);
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  const std::vector<int> column = layout_.column(local());
  Scratch& memory = scratch(lane);
  for (std::size_t from = 0; from < longest; from += step(element)) {
    const PerRank lengths = block_of(counts, from, step(element));
    const PerRank mine = at(lengths, column);
    const PerRank places = offsets_of(mine);
    grow(memory.column, (places.back() + mine.back()) * element);
    for (int number = 0; number < layout_.hosts(); ++number) {
      const std::vector<int>& there = layout_.ranks_on(number);
      const PerRank parts = at(lengths, there);
      grow(memory.packed, std::accumulate(parts.begin(), parts.end(), std::size_t{0}) * element);
      std::byte* end = memory.packed.data();
      for (std::size_t i = 0; i < there.size(); ++i) {
        if (parts[i] > 0) {
          const std::size_t begin = starts[static_cast<std::size_t>(there[i])] + from;
          std::memcpy(end, send + begin * element, parts[i] * element);
          end += parts[i] * element;
        }
      }
      const std::size_t index = index_of(column, there[static_cast<std::size_t>(local())]);
      inside_->reduce_scatter(lane,
                              memory.packed.data(),
                              memory.column.data() + places[index] * element,
                              parts,
                              {reduction.dtype, reduction.op});
    }
    const std::size_t begin = std::min(from, counts[static_cast<std::size_t>(rank_)]);
    between_->reduce_scatter(lane, memory.column.data(), recv + begin * element, mine, reduction);
  }
}

}  // namespace aiacc
