// The calls of ShmChannel in which a rank has something else for every other one. Each slot is cut
// into shares, one per receiver.

#include <algorithm>
#include <cstring>
#include <string>

#include "csrc/engines/shm/shm_channel.h"
#include "csrc/kernels/reduce.h"
#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

constexpr std::size_t kCacheLine = 64;
/// A piece is cut into at least this many blocks, as far as kMinShareBytes allows, so that copying
/// one overlaps with waiting for another.
constexpr std::size_t kMinBlocks = 4;
constexpr std::size_t kMinShareBytes = std::size_t{16} << 10;

/// What block `index` holds of `total` units in shares of `share`.
std::size_t length_in_block(std::size_t total, std::size_t share, std::uint64_t index) {
  const std::size_t from = static_cast<std::size_t>(index) * share;
  return total > from ? std::min(share, total - from) : 0;
}

}  // namespace

/// Bytes of a share, a multiple of the cache line, when the longest piece has `longest`.
std::size_t ShmChannel::share_bytes(std::size_t longest) const {
  const std::size_t most = slot_bytes_ / segments_.size() / kCacheLine * kCacheLine;
  AIACC_CHECK(most > 0);
  const std::size_t wanted = (longest / kMinBlocks + kCacheLine) / kCacheLine * kCacheLine;
  return std::clamp(wanted, std::min(kMinShareBytes, most), most);
}

void ShmChannel::reduce_scatter(const void* send,
                                void* recv,
                                const PerRank& counts,
                                const Reduction& reduction) {
  const auto& [dtype, op, factor] = reduction;
  const std::size_t element = size_of(dtype);
  const PerRank offsets = offsets_of(counts);
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  const std::size_t share = share_bytes(longest * element) / element;
  const std::uint64_t blocks = (longest + share - 1) / share;
  const std::uint64_t first = blocks_;
  const auto mine = static_cast<std::size_t>(rank_);
  const auto source = [&](std::size_t rank, std::uint64_t index) {
    return static_cast<const std::byte*>(send) +
           (offsets[rank] + static_cast<std::size_t>(index) * share) * element;
  };
  cancellation_.check();
  for (std::uint64_t index = 0; index <= blocks; ++index) {
    if (index < blocks) {
      start_block(first + index);
      std::byte* target = slot(rank_, first + index);
      for (std::size_t rank = 0; rank < counts.size(); ++rank) {
        const std::size_t length = length_in_block(counts[rank], share, index);
        if (rank != mine && length > 0) {
          std::memcpy(target + rank * share * element, source(rank, index), length * element);
        }
      }
      progress_.announce(ShmProgress::kPublished, first + index + 1);
    }
    if (index == 0) {
      continue;
    }
    // The block before: the other ranks have had time to publish theirs.
    const std::uint64_t block = first + index - 1;
    const std::size_t length = length_in_block(counts[mine], share, index - 1);
    if (length > 0) {
      std::byte* result =
          static_cast<std::byte*>(recv) + static_cast<std::size_t>(index - 1) * share * element;
      const std::byte* left = source(mine, index - 1);
      for (int step = 1; step < size(); ++step) {
        const int peer = (rank_ + step) % size();
        progress_.wait_for(peer, ShmProgress::kPublished, block + 1);
        reduce_scaled(result,
                      left,
                      slot(peer, block) + mine * share * element,
                      length,
                      {dtype, op, step == size() - 1 ? factor : 1.0});
        left = result;
      }
      if (size() == 1) {
        copy_scaled(result, left, length, dtype, factor);
      }
    }
    finish_block(block);
  }
  blocks_ = first + blocks;
}

/// The longest piece that any rank has for another, from a block in which everyone shows what it
/// sends. Throws if a piece is not what this rank expects.
std::size_t ShmChannel::longest_piece(const PerRank& send_bytes, const PerRank& recv_bytes) {
  const std::size_t row_bytes = send_bytes.size() * sizeof(std::size_t);
  AIACC_CHECK(row_bytes <= slot_bytes_);
  const std::uint64_t block = blocks_++;
  start_block(block);
  std::memcpy(slot(rank_, block), send_bytes.data(), row_bytes);
  progress_.announce(ShmProgress::kPublished, block + 1);
  std::size_t longest = *std::max_element(send_bytes.begin(), send_bytes.end());
  std::vector<std::size_t> row(send_bytes.size());
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank_ + step) % size();
    progress_.wait_for(peer, ShmProgress::kPublished, block + 1);
    std::memcpy(row.data(), slot(peer, block), row_bytes);
    longest = std::max(longest, *std::max_element(row.begin(), row.end()));
    const std::size_t sent = row[static_cast<std::size_t>(rank_)];
    const std::size_t expected = recv_bytes[static_cast<std::size_t>(peer)];
    if (sent != expected) {
      throw Error(Code::kInternal,
                  "[shm] ranks disagree on all_to_all: rank " + std::to_string(peer) + " sends " +
                      std::to_string(sent) + " bytes to rank " + std::to_string(rank_) +
                      ", which expects " + std::to_string(expected) +
                      "; this is a bug in aiacc, please report it");
    }
  }
  finish_block(block);
  return longest;
}

void ShmChannel::all_to_all(const void* send,
                            void* recv,
                            const PerRank& send_bytes,
                            const PerRank& recv_bytes) {
  cancellation_.check();
  const std::size_t longest = longest_piece(send_bytes, recv_bytes);
  const PerRank sources = offsets_of(send_bytes);
  const PerRank targets = offsets_of(recv_bytes);
  const std::size_t share = share_bytes(longest);
  const std::uint64_t blocks = size() > 1 ? (longest + share - 1) / share : 0;
  const std::uint64_t first = blocks_;
  const auto mine = static_cast<std::size_t>(rank_);
  const auto* source = static_cast<const std::byte*>(send);
  auto* target = static_cast<std::byte*>(recv);
  for (std::uint64_t index = 0; index <= blocks; ++index) {
    if (index < blocks) {
      start_block(first + index);
      for (std::size_t peer = 0; peer < send_bytes.size(); ++peer) {
        const std::size_t bytes = length_in_block(send_bytes[peer], share, index);
        if (peer != mine && bytes > 0) {
          std::memcpy(slot(rank_, first + index) + peer * share,
                      source + sources[peer] + static_cast<std::size_t>(index) * share,
                      bytes);
        }
      }
      progress_.announce(ShmProgress::kPublished, first + index + 1);
    }
    if (index == 0) {
      continue;
    }
    const std::uint64_t block = first + index - 1;
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank_ + step) % size();
      const auto from = static_cast<std::size_t>(peer);
      const std::size_t bytes = length_in_block(recv_bytes[from], share, index - 1);
      if (bytes > 0) {
        progress_.wait_for(peer, ShmProgress::kPublished, block + 1);
        std::memcpy(target + targets[from] + static_cast<std::size_t>(index - 1) * share,
                    slot(peer, block) + mine * share,
                    bytes);
      }
    }
    finish_block(block);
  }
  blocks_ = first + blocks;
  if (send_bytes[mine] > 0) {
    std::memcpy(target + targets[mine], source + sources[mine], send_bytes[mine]);
  }
}

}  // namespace aiacc
