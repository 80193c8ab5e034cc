#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/engines/engine_context.h"
#include "csrc/engines/tcp/ring_stream.h"

namespace aiacc {

/// Collectives of one bulk lane on a ring of all ranks. One thread at a time; contracts as in
/// Engine.
class Ring {
 public:
  /// `next` leads to rank + 1, `previous` to rank - 1 (modulo size); size is at least 2.
  Ring(int rank, int size, Channel next, Channel previous, const Cancellation& cancellation);

  /// Reduce-scatter, then all-gather. Every element is reduced along the ring in one order and then
  /// copied, hence the same bits everywhere.
  void all_reduce(const void* send, void* recv, std::size_t count, const Reduction& reduction);

  /// As in Engine.
  void start_all_reduce(int ticket, void* data, std::size_t count, const Reduction& reduction);
  void finish_all_reduce(int ticket) { stream_.finish(ticket); }

  /// A pipeline from root around the ring.
  void broadcast(void* buffer, std::size_t bytes, int root);

  void all_gather(const void* send, void* recv, const PerRank& bytes_of);

  /// The first half of an all-reduce. Long parts are done block by block, because what is on its
  /// way to another rank needs memory.
  void reduce_scatter(const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction);

  /// See Engine. Any thread.
  double send_busy_s() const { return stream_.send_busy_s(); }

 private:
  int wrap(int rank) const { return (rank % size_ + size_) % size_; }
  RingSchedule& begin(OpHeader::Kind kind, std::size_t bytes);
  RingSchedule& begin(OpHeader::Kind kind, std::size_t count, const Reduction& reduction);
  void plan_all_reduce(const void* send, void* recv, std::size_t count, const Reduction& reduction);

  int rank_;
  int size_;
  RingStream stream_;
  std::uint32_t sequence_ = 0;
  std::vector<char> partial_;  // sums on their way through this rank, in reduce_scatter
};

/// First element and number of elements of chunk `index` when `count` elements are cut into
/// `chunks`: as equal as possible at a granularity of whole cache lines, possibly empty.
std::pair<std::size_t, std::size_t> chunk_of(std::size_t count,
                                             std::size_t element_bytes,
                                             int chunks,
                                             int index);

}  // namespace aiacc
