#include "csrc/engines/device_coded_all_reduce.h"

#include <algorithm>
#include <numeric>

#include "csrc/engines/coded_parts.h"

namespace aiacc {
namespace {

/// Where parts of the memory end.
struct Layout {
  std::size_t sent = 0;
  std::size_t received = 0;
  std::size_t workspace = 0;
};

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

std::size_t sum_of(const PerRank& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::size_t{0});
}

Layout layout_of(std::size_t count, const Coding& coding, std::size_t ranks) {
  Layout layout;
  if (coding.in_blocks()) {
    const BlockCode code = coding.block_code();
    const PerRank bytes = encoded_shards(shards_of(count, code.block, ranks), code);
    const std::size_t total = sum_of(bytes);
    layout.sent = aligned(total);
    layout.received = layout.sent + aligned(std::max(total, bytes.front() * ranks));
    layout.workspace = layout.received;
  } else {
    const std::size_t selected = coding.selected(count);
    const bool dense = pairs_are_longer(selected, count, ranks);
    layout.sent = aligned(pairs_bytes(selected));
    layout.received = layout.sent + (dense ? 0 : aligned(pairs_bytes(selected) * ranks));
    layout.workspace = layout.received + aligned(select_workspace_bytes(count, selected));
  }
  return layout;
}

}  // namespace

std::size_t DeviceCodedAllReduce::memory_bytes(std::size_t count,
                                               const Coding& coding,
                                               std::size_t ranks) {
  return layout_of(count, coding, ranks).workspace;
}

DeviceCodedAllReduce::DeviceCodedAllReduce(DeviceCoding& kernels,
                                           DeviceEngine& engine,
                                           int lane,
                                           const DeviceCodedReduce& reduce,
                                           std::size_t rank,
                                           std::size_t ranks,
                                           std::byte* memory)
    : kernels_(kernels),
      engine_(engine),
      driver_(kernels.driver()),
      lane_(lane),
      reduce_(reduce),
      rank_(rank),
      ranks_(ranks),
      code_(reduce.coding.in_blocks() ? reduce.coding.block_code() : BlockCode{}),
      selected_(reduce.coding.in_blocks() ? 0 : reduce.coding.selected(reduce.count)) {
  const Layout layout = layout_of(reduce.count, reduce.coding, ranks);
  sent_ = memory;
  received_ = memory + layout.sent;
  workspace_ = memory + layout.received;
  if (reduce.coding.in_blocks()) {
    shards_ = shards_of(reduce.count, code_.block, ranks);
    bytes_ = encoded_shards(shards_, code_);
    first_ = std::accumulate(
        shards_.begin(), shards_.begin() + static_cast<std::ptrdiff_t>(rank), std::size_t{0});
  } else {
    bytes_.assign(ranks, pairs_bytes(selected_));
    dense_ = pairs_are_longer(selected_, reduce.count, ranks);
  }
}

void DeviceCodedAllReduce::encode(CudaStream stream) {
  if (reduce_.coding.in_blocks()) {
    kernels_.blocks().encode(stream,
                             sent_,
                             reduce_.given,
                             reduce_.residual,
                             reduce_.count,
                             code_,
                             1.0F,
                             {reduce_.coding.stochastic(), reduce_.seed},
                             0);
    return;
  }
  kernels_.selector().select(stream,
                             plan_selection(sent_,
                                            reduce_.given,
                                            reduce_.residual,
                                            reduce_.residual,
                                            reduce_.count,
                                            selected_,
                                            1.0F,
                                            reduce_.coding.mode(),
                                            reduce_.seed,
                                            kernels_.state(stream, reduce_.residual),
                                            workspace_));
  if (dense_) {
    add_pairs(stream, sent_, 1);
  }
}

void DeviceCodedAllReduce::issue() {
  const int number = issued_++;
  if (dense_ && number == 0) {
    engine_.all_reduce(lane_, reduce_.values, reduce_.values, reduce_.count, {});
  } else if (reduce_.coding.in_blocks() && number == 0) {
    engine_.all_to_all(lane_, sent_, received_, bytes_, PerRank(ranks_, bytes_[rank_]));
  } else if (number == (reduce_.coding.in_blocks() ? 1 : 0)) {
    engine_.all_gather(lane_, sent_, received_, bytes_);
  }
}

bool DeviceCodedAllReduce::go_on() {
  const CudaStream stream = engine_.stream(lane_);
  if (!reduce_.coding.in_blocks()) {
    if (issued_ == 1 && !dense_) {
      add_pairs(stream, received_, ranks_);
    }
    return false;
  }
  if (issued_ == 1) {
    add_shards(stream);
    return true;
  }
  if (issued_ == 2) {
    kernels_.blocks().decode(stream, reduce_.values, received_, reduce_.count, code_, 1.0F);
  }
  return false;
}

/// What all ranks have sent of the own shard, in their order; the sum is encoded.
void DeviceCodedAllReduce::add_shards(CudaStream stream) {
  const std::size_t count = shards_[rank_];
  float* sum = reduce_.values + first_;
  for (std::size_t from = 0; from < ranks_; ++from) {
    const std::byte* part = received_ + from * bytes_[rank_];
    if (from == 0) {
      kernels_.blocks().decode(stream, sum, part, count, code_, 1.0F);
    } else {
      kernels_.blocks().decode_add(stream, sum, part, count, code_);
    }
  }
  kernels_.blocks().encode(stream,
                           sent_,
                           sum,
                           reduce_.residual == nullptr ? nullptr : reduce_.residual + first_,
                           count,
                           code_,
                           1.0F,
                           {reduce_.coding.stochastic(), reduce_.seed ^ kSeedOfSum},
                           first_);
}

void DeviceCodedAllReduce::add_pairs(CudaStream stream, const std::byte* from, std::size_t ranks) {
  AIACC_CUDA_CHECK(driver_,
                   fill_async,
                   reinterpret_cast<CudaAddress>(reduce_.values),
                   0,
                   reduce_.count * sizeof(float),
                   stream);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    kernels_.pairs().add(
        stream, reduce_.values, from + rank * pairs_bytes(selected_), selected_, reduce_.count);
  }
}

}  // namespace aiacc
