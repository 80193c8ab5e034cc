#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/engines/block_mover.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine_context.h"
#include "csrc/engines/shm/shm_progress.h"

namespace aiacc {

/// The part of an all-reduce that leaves the node: combines one piece in place with the same piece
/// of the other nodes. `ticket` (0 .. ShmChannel::kSlots-1) names the piece between the two calls;
/// several tickets may be outstanding. Both throw Error.
class CrossHostReduce {
 public:
  virtual ~CrossHostReduce() = default;
  virtual void start(int ticket, void* data, std::size_t count, DataType dtype, ReduceOp op) = 0;
  virtual void finish(int ticket) = 0;
};

/// Collectives of one lane between the ranks of one node, through memory that all of them map.
///
/// Every rank owns one segment: progress counters and kSlots slots. A buffer travels
/// as blocks of slot size; an all-reduce is reduce-scatter plus all-gather within each block, and
/// three blocks are in work at a time, so that a rank seldom finds its neighbour behind. Slots are
/// meant to stay in the cache: memory sees little more than one read and one write of the buffer.
///
/// Threads: one at a time; `wake` from any. Ranks: all of the node, same calls in the same order.
/// Blocking: every call, sleeping in a futex after `spin_us`. There is no deadline: who owns the
/// channel sets the cancellation, and calls `wake`, when a peer is lost; the running call and all
/// later ones throw its status. Buffers are not touched after a call has thrown.
class ShmChannel {
 public:
  static constexpr int kSlots = 4;

  /// Bytes of one segment; segments start at a multiple of 64.
  static std::size_t segment_bytes(std::size_t slot_bytes);

  /// `segments[r]` is where this process sees the segment of the r-th rank of the node. Every rank
  /// must have `reset` its own before any rank's first call. `slot_bytes` is a multiple of 64.
  ShmChannel(std::vector<void*> segments,
             int rank,
             std::size_t slot_bytes,
             double spin_us,
             const Cancellation& cancellation);
  ShmChannel(const ShmChannel&) = delete;
  ShmChannel& operator=(const ShmChannel&) = delete;

  /// Brings a segment to its initial state. No rank may be using it.
  static void reset(void* segment) { ShmProgress::reset(segment); }

  int size() const { return static_cast<int>(segments_.size()); }

  /// As Engine::all_reduce. `cross` is null when the job has one node. Each of the first `owners`
  /// ranks of the node reduces a piece of every block; 0: all do.
  void all_reduce(const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction,
                  CrossHostReduce* cross,
                  int owners = 0);

  /// Up to here every rank reduces everything: one exchange of flags instead of two.
  static constexpr std::size_t kSmallBytes = std::size_t{8} << 10;

  /// As Engine::all_reduce_moved, for more than kSmallBytes, between several ranks. Other ranks may
  /// be in `all_reduce` meanwhile, with `cross` null and all as owners. All copies are over when it
  /// returns or has thrown.
  void all_reduce_moved(std::size_t count, const Reduction& reduction, BlockMover& mover);

  /// Copies `bytes_of[r]` bytes of every rank r from its `send` to `recv[r]` of all ranks.
  void exchange(const void* send, const PerRank& bytes_of, const std::vector<void*>& recv);

  /// As Engine::reduce_scatter and Engine::all_to_all, between the ranks of the node.
  void reduce_scatter(const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction);
  void all_to_all(const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes);

  /// As Engine::waits; the rank is that of the node. Any thread.
  LaneWait waits() const { return progress_.waits(); }

  /// Makes a sleeping call look at the cancellation.
  void wake() noexcept { progress_.wake(); }

 private:
  struct Plan;

  void small_all_reduce(const void* send,
                        void* recv,
                        std::size_t count,
                        const Reduction& reduction);
  Plan cut(std::size_t count, const Reduction& reduction, bool leaves_node, int owners) const;
  void move_blocks(const Plan& plan, BlockMover& mover);
  void reduce_in_slot(const Plan& plan, std::uint64_t block);
  void start_out(const Plan& plan, std::uint64_t block, BlockMover& mover);
  void publish(const Plan& plan, std::uint64_t block);
  void reduce_piece(const Plan& plan, std::uint64_t block);
  void gather(const Plan& plan, std::uint64_t block);
  void start_block(std::uint64_t block);
  void finish_block(std::uint64_t block);
  std::size_t share_bytes(std::size_t longest) const;
  std::size_t longest_piece(const PerRank& send_bytes, const PerRank& recv_bytes);

  std::byte* slot(int rank, std::uint64_t block) const;

  ShmProgress progress_;
  const std::vector<void*> segments_;
  const int rank_;
  const std::size_t slot_bytes_;
  const Cancellation& cancellation_;
  std::uint64_t blocks_ = 0;  ///< blocks of all calls so far: the sequence number of the next one
};

}  // namespace aiacc
