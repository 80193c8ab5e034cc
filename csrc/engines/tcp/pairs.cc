#include "csrc/engines/tcp/pairs.h"

#include <utility>

#include "csrc/engines/tcp/exchange.h"

namespace aiacc {

Pairs::Pairs(int rank,
             int size,
             std::vector<Channel> channels,
             const Cancellation& cancellation,
             double spin_us)
    : rank_(static_cast<std::size_t>(rank)),
      size_(static_cast<std::size_t>(size)),
      channels_(std::move(channels)),
      cancellation_(cancellation),
      spin_(duration_of(spin_us * 1e-6)) {}

void Pairs::all_to_all(const void* send,
                       void* recv,
                       const PerRank& send_bytes,
                       const PerRank& recv_bytes) {
  const PerRank sources = offsets_of(send_bytes);
  const PerRank targets = offsets_of(recv_bytes);
  const auto* from = static_cast<const char*>(send);
  auto* to = static_cast<char*>(recv);
  LocalCopy own(to + targets[rank_], from + sources[rank_], send_bytes[rank_]);
  for (std::size_t round = 1; round < size_; ++round) {
    const std::size_t receiver = (rank_ + round) % size_;
    const std::size_t sender = (rank_ + size_ - round) % size_;
    const OpHeader mine = header_of(send_bytes[receiver]);
    const OpHeader expected = header_of(recv_bytes[sender]);
    OpHeader theirs;
    Message outgoing = Message::sent(mine);
    outgoing.add(from + sources[receiver], send_bytes[receiver]);
    Message incoming = Message::received(theirs, expected);
    incoming.add(to + targets[sender], recv_bytes[sender]);
    exchange(channel_to(round),
             outgoing,
             channel_to(size_ - round),
             incoming,
             spin_,
             cancellation_,
             &own);
  }
  while (own.step()) {
  }
  ++sequence_;
}

OpHeader Pairs::header_of(std::size_t bytes) const {
  OpHeader header;
  header.kind = OpHeader::kAllToAll;
  header.sequence = sequence_;
  header.bytes = bytes;
  return header;
}

}  // namespace aiacc
