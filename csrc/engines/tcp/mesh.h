#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/spin.h"
#include "csrc/engines/engine_context.h"
#include "csrc/engines/tcp/channel.h"
#include "csrc/engines/tcp/exchange.h"

namespace aiacc {

/// Connections of the express lane: rank r < P, P the largest power of two <= size, has one to
/// r ^ 1, r ^ 2, r ^ 4 ... below P; a rank r >= P has one to r - P, its *home*.
std::vector<int> mesh_partners(int rank, int size);

/// Collectives of the express lane by recursive doubling: log2(size) exchanges of whole messages,
/// for few bytes the fastest way there is. Any size works; bulk belongs on a Ring.
/// One thread at a time; contracts as in Engine.
class Mesh {
 public:
  /// `channels` in the order of mesh_partners. A wait spins for `spin_us` before it sleeps.
  Mesh(int rank,
       int size,
       std::vector<Channel> channels,
       const Cancellation& cancellation,
       double spin_us);

  void all_reduce(const void* send, void* recv, std::size_t count, const Reduction& reduction);
  void broadcast(void* buffer, std::size_t bytes, int root);
  void all_gather(const void* send, void* recv, const PerRank& bytes_of);

  /// Every rank reduces everything and keeps its part.
  void reduce_scatter(const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction);

 private:
  void begin(OpHeader::Kind kind, std::size_t bytes);
  void reduce_all(const void* send, void* recv, std::size_t count, const Reduction& reduction);
  Message with_header() const { return Message::sent(header_); }
  Message expecting_header() { return Message::received(their_header_, header_); }
  /// Sends and receives until both are done.
  void swap(Channel& channel, const Message& outgoing, const Message& incoming) {
    exchange(channel, outgoing, channel, incoming, spin_, cancellation_);
  }
  void reduce_piece(const char* send, char* recv, std::size_t count, const Reduction& reduction);

  bool is_extra() const { return rank_ >= power_; }
  bool has_extra() const { return rank_ + power_ < size_; }
  Channel& home() { return channels_.front(); }
  Channel& extra() { return channels_.back(); }

  int rank_;
  int size_;
  int power_;  // P
  std::vector<Channel> channels_;
  const Cancellation& cancellation_;
  Spin spin_;

  OpHeader header_;
  OpHeader their_header_;
  std::uint32_t sequence_ = 0;
  std::vector<char> theirs_;
  std::vector<char> reduced_;  // by reduce_scatter
};

}  // namespace aiacc
