#include "csrc/engines/tcp/mesh.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "csrc/kernels/reduce.h"

namespace aiacc {
namespace {

// Longer payloads go piece by piece, so that what was received stays in the cache.
constexpr std::size_t kPieceBytes = std::size_t{64} * 1024;

int largest_power_of_two(int size) {
  int power = 1;
  while (power * 2 <= size) {
    power *= 2;
  }
  return power;
}

}  // namespace

std::vector<int> mesh_partners(int rank, int size) {
  const int power = largest_power_of_two(size);
  if (rank >= power) {
    return {rank - power};
  }
  std::vector<int> partners;
  for (int bit = 1; bit < power; bit *= 2) {
    partners.push_back(rank ^ bit);
  }
  if (rank + power < size) {
    partners.push_back(rank + power);
  }
  return partners;
}

Mesh::Mesh(int rank,
           int size,
           std::vector<Channel> channels,
           const Cancellation& cancellation,
           double spin_us)
    : rank_(rank),
      size_(size),
      power_(largest_power_of_two(size)),
      channels_(std::move(channels)),
      cancellation_(cancellation),
      spin_(duration_of(spin_us * 1e-6)) {}

void Mesh::all_reduce(const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  begin(OpHeader::kAllReduce, count * size_of(reduction.dtype));
  reduce_all(send, recv, count, reduction);
}

void Mesh::reduce_scatter(const void* send,
                          void* recv,
                          const PerRank& counts,
                          const Reduction& reduction) {
  const std::size_t element = size_of(reduction.dtype);
  const auto own = counts.begin() + rank_;
  const std::size_t before = std::accumulate(counts.begin(), own, std::size_t{0});
  const std::size_t count = std::accumulate(own, counts.end(), before);
  begin(OpHeader::kReduceScatter, count * element);
  reduced_.resize(count * element);
  reduce_all(send, reduced_.data(), count, reduction);
  if (*own > 0) {
    std::memcpy(recv, reduced_.data() + before * element, *own * element);
  }
}

void Mesh::reduce_all(const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t total = count * element;
  header_.dtype = static_cast<std::uint8_t>(reduction.dtype);
  header_.detail = static_cast<std::uint8_t>(reduction.op);
  std::size_t at = 0;
  do {
    const std::size_t bytes = std::min(total - at, kPieceBytes);
    reduce_piece(static_cast<const char*>(send) + at,
                 static_cast<char*>(recv) + at,
                 bytes / element,
                 reduction);
    at += bytes;
  } while (at < total);
}

void Mesh::reduce_piece(const char* send,
                        char* recv,
                        std::size_t count,
                        const Reduction& reduction) {
  const auto& [dtype, op, factor] = reduction;
  const std::size_t bytes = count * size_of(dtype);
  if (send != recv && bytes > 0) {
    std::memcpy(recv, send, bytes);
  }
  theirs_.resize(std::max(theirs_.size(), bytes));
  Message mine = with_header();
  mine.add(recv, bytes);
  const auto receive_from = [&](Channel& channel, bool both_ways) {
    Message incoming = expecting_header();
    incoming.add(theirs_.data(), bytes);
    swap(channel, both_ways ? mine : Message{}, incoming);
  };
  if (is_extra()) {
    Message result = expecting_header();
    result.add(recv, bytes);
    swap(home(), mine, Message{});
    return swap(home(), Message{}, result);
  }
  if (has_extra()) {
    receive_from(extra(), false);
    reduce_into(recv, recv, theirs_.data(), count, dtype, op);
  }
  for (int k = 0, bit = 1; bit < power_; ++k, bit *= 2) {
    receive_from(channels_[static_cast<std::size_t>(k)], true);
    // Both partners put the lower rank's part first: `a op b` and `b op a` may differ in the bits
    // of a NaN or in the sign of a zero.
    const bool lower = (rank_ & bit) == 0;
    const void* first = lower ? recv : theirs_.data();
    const void* second = lower ? theirs_.data() : recv;
    const bool last = 2 * bit >= power_;
    reduce_scaled(recv, first, second, count, {dtype, op, last ? factor : 1.0});
  }
  if (has_extra()) {
    swap(extra(), mine, Message{});
  }
}

void Mesh::broadcast(void* buffer, std::size_t bytes, int root) {
  begin(OpHeader::kBroadcast, bytes);
  const auto give = [&](Channel& channel) {
    Message outgoing = with_header();
    outgoing.add(buffer, bytes);
    swap(channel, outgoing, Message{});
  };
  const auto get = [&](Channel& channel) {
    Message incoming = expecting_header();
    incoming.add(buffer, bytes);
    swap(channel, Message{}, incoming);
  };
  if (is_extra()) {
    return rank_ == root ? give(home()) : get(home());
  }
  if (has_extra() && rank_ + power_ == root) {
    get(extra());
  }
  // A binomial tree over the first P ranks, renamed by XOR so that its edges are mesh connections.
  const int renamed = rank_ ^ (root % power_);
  for (int bit = power_ / 2, k = static_cast<int>(channels_.size()) - (has_extra() ? 2 : 1);
       bit > 0;
       bit /= 2, --k) {
    Channel& partner = channels_[static_cast<std::size_t>(k)];
    if (renamed % (2 * bit) == 0) {
      give(partner);
    } else if (renamed % (2 * bit) == bit) {
      get(partner);
    }
  }
  if (has_extra() && rank_ + power_ != root) {
    give(extra());
  }
}

void Mesh::all_gather(const void* send, void* recv, const PerRank& bytes_of) {
  std::vector<std::size_t> offsets(bytes_of.size() + 1, 0);
  for (std::size_t i = 0; i < bytes_of.size(); ++i) {
    offsets[i + 1] = offsets[i] + bytes_of[i];
  }
  auto* target = static_cast<char*>(recv);
  const auto offset = [&](int rank) {
    return offsets[std::min(static_cast<std::size_t>(rank), bytes_of.size())];
  };
  const auto add_ranks = [&](Message& parts, int begin_rank, int end_rank) {
    parts.add(target + offset(begin_rank), offset(end_rank) - offset(begin_rank));
  };
  begin(OpHeader::kAllGather, offsets.back());
  const std::size_t own = bytes_of[static_cast<std::size_t>(rank_)];
  if (target + offset(rank_) != send && own > 0) {
    std::memcpy(target + offset(rank_), send, own);
  }
  if (is_extra()) {
    Message mine = with_header();
    add_ranks(mine, rank_, rank_ + 1);
    Message everything = expecting_header();
    add_ranks(everything, 0, size_);
    swap(home(), mine, Message{});
    return swap(home(), Message{}, everything);
  }
  if (has_extra()) {
    Message theirs = expecting_header();
    add_ranks(theirs, rank_ + power_, rank_ + power_ + 1);
    swap(extra(), Message{}, theirs);
  }
  for (int k = 0, bit = 1; bit < power_; ++k, bit *= 2) {
    // Each side owns an aligned block of `bit` ranks and the extras of these.
    const int mine = rank_ & ~(bit - 1);
    const int theirs = mine ^ bit;
    Message outgoing = with_header();
    add_ranks(outgoing, mine, mine + bit);
    add_ranks(outgoing, mine + power_, mine + power_ + bit);
    Message incoming = expecting_header();
    add_ranks(incoming, theirs, theirs + bit);
    add_ranks(incoming, theirs + power_, theirs + power_ + bit);
    swap(channels_[static_cast<std::size_t>(k)], outgoing, incoming);
  }
  if (has_extra()) {
    Message everything = with_header();
    add_ranks(everything, 0, size_);
    swap(extra(), everything, Message{});
  }
}

void Mesh::begin(OpHeader::Kind kind, std::size_t bytes) {
  header_ = OpHeader{};
  header_.kind = kind;
  header_.sequence = sequence_++;
  header_.bytes = bytes;
}

}  // namespace aiacc
