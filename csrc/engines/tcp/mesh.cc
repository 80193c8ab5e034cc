#include "csrc/engines/tcp/mesh.h"

#include <algorithm>
#include <chrono>
#include <cstring>
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
      spin_(std::chrono::nanoseconds(static_cast<long long>(spin_us * 1e3))) {}

void Mesh::all_reduce(const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t total = count * element;
  begin(OpHeader::kAllReduce, total);
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
  Parts mine = with_header();
  mine.add(recv, bytes);
  const auto receive_from = [&](Channel& channel, bool both_ways) {
    Parts incoming = expecting_header();
    incoming.add(theirs_.data(), bytes);
    exchange(channel, both_ways ? mine : Parts{}, incoming);
  };
  if (is_extra()) {
    Parts result = expecting_header();
    result.add(recv, bytes);
    exchange(home(), mine, Parts{});
    return exchange(home(), Parts{}, result);
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
    exchange(extra(), mine, Parts{});
  }
}

void Mesh::broadcast(void* buffer, std::size_t bytes, int root) {
  begin(OpHeader::kBroadcast, bytes);
  const auto give = [&](Channel& channel) {
    Parts outgoing = with_header();
    outgoing.add(buffer, bytes);
    exchange(channel, outgoing, Parts{});
  };
  const auto get = [&](Channel& channel) {
    Parts incoming = expecting_header();
    incoming.add(buffer, bytes);
    exchange(channel, Parts{}, incoming);
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

void Mesh::all_gather(const void* send, void* recv, const std::vector<std::size_t>& bytes_of) {
  std::vector<std::size_t> offsets(bytes_of.size() + 1, 0);
  for (std::size_t i = 0; i < bytes_of.size(); ++i) {
    offsets[i + 1] = offsets[i] + bytes_of[i];
  }
  auto* target = static_cast<char*>(recv);
  const auto offset = [&](int rank) {
    return offsets[std::min(static_cast<std::size_t>(rank), bytes_of.size())];
  };
  const auto add_ranks = [&](Parts& parts, int begin_rank, int end_rank) {
    parts.add(target + offset(begin_rank), offset(end_rank) - offset(begin_rank));
  };
  begin(OpHeader::kAllGather, offsets.back());
  const std::size_t own = bytes_of[static_cast<std::size_t>(rank_)];
  if (target + offset(rank_) != send && own > 0) {
    std::memcpy(target + offset(rank_), send, own);
  }
  if (is_extra()) {
    Parts mine = with_header();
    add_ranks(mine, rank_, rank_ + 1);
    Parts everything = expecting_header();
    add_ranks(everything, 0, size_);
    exchange(home(), mine, Parts{});
    return exchange(home(), Parts{}, everything);
  }
  if (has_extra()) {
    Parts theirs = expecting_header();
    add_ranks(theirs, rank_ + power_, rank_ + power_ + 1);
    exchange(extra(), Parts{}, theirs);
  }
  for (int k = 0, bit = 1; bit < power_; ++k, bit *= 2) {
    // Each side owns an aligned block of `bit` ranks and the extras of these.
    const int mine = rank_ & ~(bit - 1);
    const int theirs = mine ^ bit;
    Parts outgoing = with_header();
    add_ranks(outgoing, mine, mine + bit);
    add_ranks(outgoing, mine + power_, mine + power_ + bit);
    Parts incoming = expecting_header();
    add_ranks(incoming, theirs, theirs + bit);
    add_ranks(incoming, theirs + power_, theirs + power_ + bit);
    exchange(channels_[static_cast<std::size_t>(k)], outgoing, incoming);
  }
  if (has_extra()) {
    Parts everything = with_header();
    add_ranks(everything, 0, size_);
    exchange(extra(), everything, Parts{});
  }
}

void Mesh::begin(OpHeader::Kind kind, std::size_t bytes) {
  header_ = OpHeader{};
  header_.kind = kind;
  header_.sequence = sequence_++;
  header_.bytes = bytes;
}

Mesh::Parts Mesh::with_header() const {
  Parts parts;
  parts.add(&header_, sizeof header_);
  return parts;
}

Mesh::Parts Mesh::expecting_header() {
  Parts parts;
  parts.add(&their_header_, sizeof their_header_);
  parts.header_left = sizeof their_header_;
  return parts;
}

void Mesh::Parts::add(const void* data, std::size_t bytes) {
  if (bytes > 0) {
    list[count++] = {const_cast<void*>(data), bytes};
  }
}

void Mesh::Parts::advance(std::size_t bytes) {
  header_left -= std::min(header_left, bytes);
  int finished = 0;
  while (finished < count && bytes >= list[finished].iov_len) {
    bytes -= list[finished++].iov_len;
  }
  std::move(list + finished, list + count, list);
  count -= finished;
  if (bytes > 0) {
    list[0].iov_base = static_cast<char*>(list[0].iov_base) + bytes;
    list[0].iov_len -= bytes;
  }
}

void Mesh::exchange(Channel& channel, Parts outgoing, Parts incoming) {
  spin_.begin();
  while (true) {
    std::size_t moved = 0;
    if (!outgoing.done()) {
      moved = channel.send_some(outgoing.list, outgoing.count);
      outgoing.advance(moved);
    }
    if (!incoming.done()) {
      const std::size_t got = channel.recv_some(incoming.list, incoming.count);
      const bool had_header = incoming.header_left == 0;
      incoming.advance(got);
      if (!had_header && incoming.header_left == 0) {
        channel.check_header(header_, their_header_);
      }
      moved += got;
    }
    if (outgoing.done() && incoming.done()) {
      spin_.end();
      return;
    }
    cancellation_.check();
    if (moved == 0 && (!outgoing.done() || !spin_.again())) {
      wait_until_ready(outgoing.done() ? nullptr : &channel,
                       incoming.done() ? nullptr : &channel,
                       cancellation_);
    }
  }
}

}  // namespace aiacc
