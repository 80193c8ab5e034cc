#include "csrc/engines/shm/shm_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/engines/shm/shm_plan.h"
#include "csrc/kernels/reduce.h"
#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kMinBlockBytes = std::size_t{32} << 10;
/// On one node a buffer is cut into at least this many blocks, as far as kMinBlockBytes allows, so
/// that copying one overlaps with waiting for another. Between nodes the latency of each counts
/// more.
constexpr std::size_t kMinBlocks = 4;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

ShmChannel::Plan::Range ShmChannel::Plan::whole(std::uint64_t block) const {
  const std::size_t start = static_cast<std::size_t>(block - first) * block_elems;
  const std::size_t elems = std::min(block_elems, count - start);
  return {start * element, 0, elems, elems * element};
}

ShmChannel::Plan::Range ShmChannel::Plan::piece(std::uint64_t block, std::size_t rank) const {
  if (rank >= owners) {
    return {};
  }
  const Range all = whole(block);
  const std::size_t share = round_up((all.elems + owners - 1) / owners, kCacheLine / element);
  const std::size_t from = std::min(all.elems, share * rank);
  const std::size_t to = std::min(all.elems, from + share);
  return {all.offset + from * element, from * element, to - from, (to - from) * element};
}

ShmChannel::Plan ShmChannel::cut(std::size_t count,
                                 const Reduction& reduction,
                                 bool leaves_node,
                                 int owners) const {
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t blocks_at_least = leaves_node ? 1 : kMinBlocks;
  const std::size_t block_bytes = std::clamp(
      round_up(count * element / blocks_at_least, kCacheLine), kMinBlockBytes, slot_bytes_);
  Plan plan;
  plan.count = count;
  plan.reduction = reduction;
  plan.leaves_node = leaves_node;
  plan.element = element;
  plan.block_elems = block_bytes / element;
  plan.first = blocks_;
  plan.end = blocks_ + (count + plan.block_elems - 1) / plan.block_elems;
  plan.owners = owners == 0 ? segments_.size() : static_cast<std::size_t>(owners);
  return plan;
}

std::size_t ShmChannel::segment_bytes(std::size_t slot_bytes) {
  return ShmProgress::header_bytes() + kSlots * slot_bytes;
}

ShmChannel::ShmChannel(std::vector<void*> segments,
                       int rank,
                       std::size_t slot_bytes,
                       double spin_us,
                       const Cancellation& cancellation)
    : progress_(segments, rank, spin_us, cancellation),
      segments_(std::move(segments)),
      rank_(rank),
      slot_bytes_(slot_bytes),
      cancellation_(cancellation) {
  AIACC_CHECK(slot_bytes % kCacheLine == 0);
}

std::byte* ShmChannel::slot(int rank, std::uint64_t block) const {
  auto* base = static_cast<std::byte*>(segments_[static_cast<std::size_t>(rank)]);
  return base + ShmProgress::header_bytes() + (block % kSlots) * slot_bytes_;
}

void ShmChannel::all_reduce(const void* send,
                            void* recv,
                            std::size_t count,
                            const Reduction& reduction,
                            CrossHostReduce* cross,
                            int owners) {
  AIACC_CHECK(owners >= 0 && owners <= size());
  cancellation_.check();
  if (count == 0) {
    return;
  }
  if (size() == 1 && cross == nullptr) {
    return copy_scaled(recv, send, count, reduction.dtype, reduction.factor);
  }
  if (count * size_of(reduction.dtype) <= kSmallBytes && cross == nullptr) {
    small_all_reduce(send, recv, count, reduction);
    return;
  }
  Plan plan = cut(count, reduction, cross != nullptr, owners);
  plan.send = static_cast<const std::byte*>(send);
  plan.recv = static_cast<std::byte*>(recv);
  plan.writes_recv = cross != nullptr && size() == 1;
  const std::uint64_t end = plan.end;
  const auto mine = static_cast<std::size_t>(rank_);
  const bool owns = mine < plan.owners;
  // Each turn of the loop works on four consecutive blocks, the newest first: what a step waits for
  // was set going by the other ranks at least one turn earlier.
  for (std::uint64_t turn = blocks_; turn < end + 3; ++turn) {
    if (turn < end) {
      publish(plan, turn);
    }
    if (owns && turn >= plan.first + 1 && turn - 1 < end) {
      reduce_piece(plan, turn - 1);
      if (cross != nullptr) {
        const Plan::Range piece = plan.piece(turn - 1, mine);
        cross->start(static_cast<int>((turn - 1) % kSlots),
                     slot(rank_, turn - 1) + piece.in_slot,
                     piece.elems,
                     reduction.dtype,
                     reduction.op);
      } else {
        progress_.announce(ShmProgress::kReduced, turn);
      }
    }
    if (owns && cross != nullptr && turn >= plan.first + 2 && turn - 2 < end) {
      cross->finish(static_cast<int>((turn - 2) % kSlots));
      const Plan::Range piece = plan.piece(turn - 2, mine);
      std::byte* shown = slot(rank_, turn - 2) + piece.in_slot;
      std::byte* target = plan.writes_recv ? plan.recv + piece.offset : shown;
      copy_scaled(target, shown, piece.elems, reduction.dtype, reduction.factor);
      progress_.announce(ShmProgress::kReduced, turn - 1);
    }
    const std::uint64_t lag = cross != nullptr ? 3 : 2;
    if (turn >= plan.first + lag && turn - lag < end) {
      gather(plan, turn - lag);
    }
  }
  blocks_ = end;
}

void ShmChannel::publish(const Plan& plan, std::uint64_t block) {
  start_block(block);
  std::byte* target = slot(rank_, block);
  for (std::size_t rank = 0; rank < plan.owners; ++rank) {
    if (static_cast<int>(rank) != rank_) {
      const Plan::Range piece = plan.piece(block, rank);
      std::memcpy(target + piece.in_slot, plan.send + piece.offset, piece.bytes);
    }
  }
  progress_.announce(ShmProgress::kPublished, block + 1);
}

void ShmChannel::reduce_piece(const Plan& plan, std::uint64_t block) {
  const Plan::Range piece = plan.piece(block, static_cast<std::size_t>(rank_));
  std::byte* shown = slot(rank_, block) + piece.in_slot;
  const std::byte* left = plan.send + piece.offset;
  if (size() == 1) {
    std::memcpy(shown, left, piece.bytes);
    return;
  }
  // What is final already goes where it belongs at once.
  std::byte* result = plan.leaves_node ? shown : plan.recv + piece.offset;
  const DataType dtype = plan.reduction.dtype;
  const ReduceOp op = plan.reduction.op;
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank_ + step) % size();
    progress_.wait_for(peer, ShmProgress::kPublished, block + 1);
    const std::byte* right = slot(peer, block) + piece.in_slot;
    if (step == size() - 1 && !plan.leaves_node) {
      reduce_scaled_to_both(result, shown, left, right, piece.elems, plan.reduction);
    } else {
      reduce_into(result, left, right, piece.elems, dtype, op);
    }
    left = result;
  }
}

void ShmChannel::gather(const Plan& plan, std::uint64_t block) {
  const auto owners = static_cast<int>(plan.owners);
  for (int step = 0; step < owners; ++step) {
    const int owner = (rank_ + step) % owners;
    if (plan.writes_recv || (owner == rank_ && !plan.leaves_node)) {
      continue;
    }
    progress_.wait_for(owner, ShmProgress::kReduced, block + 1);
    const Plan::Range piece = plan.piece(block, static_cast<std::size_t>(owner));
    std::memcpy(plan.recv + piece.offset, slot(owner, block) + piece.in_slot, piece.bytes);
  }
  progress_.announce(ShmProgress::kConsumed, block + 1);
}

void ShmChannel::small_all_reduce(const void* send,
                                  void* recv,
                                  std::size_t count,
                                  const Reduction& reduction) {
  const auto& [dtype, op, factor] = reduction;
  const std::size_t bytes = count * size_of(dtype);
  const std::uint64_t block = blocks_++;
  start_block(block);
  std::memcpy(slot(rank_, block), send, bytes);
  progress_.announce(ShmProgress::kPublished, block + 1);
  // In rank order on every rank: sums of floats must be bit-identical.
  progress_.wait_for(0, ShmProgress::kPublished, block + 1);
  std::memcpy(recv, slot(0, block), bytes);
  for (int rank = 1; rank < size(); ++rank) {
    progress_.wait_for(rank, ShmProgress::kPublished, block + 1);
    reduce(recv, slot(rank, block), count, dtype, op);
  }
  copy_scaled(recv, recv, count, dtype, factor);
  finish_block(block);
}

/// Waits until the slot of `block` may be written.
void ShmChannel::start_block(std::uint64_t block) {
  cancellation_.check();
  if (block >= kSlots) {
    progress_.wait_for_others(ShmProgress::kConsumed, block - kSlots + 1);
  }
}

void ShmChannel::finish_block(std::uint64_t block) {
  progress_.announce(ShmProgress::kReduced, block + 1);
  progress_.announce(ShmProgress::kConsumed, block + 1);
}

void ShmChannel::exchange(const void* send,
                          const PerRank& bytes_of,
                          const std::vector<void*>& recv) {
  cancellation_.check();
  const std::size_t longest = *std::max_element(bytes_of.begin(), bytes_of.end());
  const std::uint64_t blocks = (longest + slot_bytes_ - 1) / slot_bytes_;
  const std::uint64_t first = blocks_;
  const auto part = [&](int rank, std::uint64_t block) {
    const std::size_t total = bytes_of[static_cast<std::size_t>(rank)];
    const std::size_t from = std::min(total, static_cast<std::size_t>(block - first) * slot_bytes_);
    return std::pair<std::size_t, std::size_t>{from, std::min(slot_bytes_, total - from)};
  };
  for (std::uint64_t turn = first; turn < first + blocks + 1; ++turn) {
    if (turn < first + blocks) {
      start_block(turn);
      const auto [from, bytes] = part(rank_, turn);
      if (bytes > 0) {
        std::memcpy(slot(rank_, turn), static_cast<const std::byte*>(send) + from, bytes);
      }
      progress_.announce(ShmProgress::kPublished, turn + 1);
    }
    if (turn == first) {
      continue;
    }
    const std::uint64_t block = turn - 1;
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank_ + step) % size();
      const auto [from, bytes] = part(peer, block);
      if (bytes > 0) {
        progress_.wait_for(peer, ShmProgress::kPublished, block + 1);
        std::memcpy(static_cast<std::byte*>(recv[static_cast<std::size_t>(peer)]) + from,
                    slot(peer, block),
                    bytes);
      }
    }
    finish_block(block);
  }
  blocks_ = first + blocks;
  const auto mine = static_cast<std::size_t>(rank_);
  if (recv[mine] != send && bytes_of[mine] > 0) {
    std::memcpy(recv[mine], send, bytes_of[mine]);
  }
}

}  // namespace aiacc
