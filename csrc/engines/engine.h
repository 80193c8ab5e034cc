#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/error.h"
#include "csrc/base/wait_mark.h"
#include "csrc/engines/block_mover.h"
#include "csrc/engines/engine_context.h"

namespace aiacc {

struct CodedReduce;
struct CodedMemory;

/// Moves the bytes of tensors in host memory between ranks. For tensors on GPUs see DeviceEngine.
///
/// Threads: a lane is used by one thread at a time, different lanes concurrently. Besides the
/// numbered lanes there is the *express lane*, `express_lane()`, for small buffers: built for
/// latency.
/// Order: all ranks issue the same operations in the same order on one lane; nothing is assumed
/// between lanes.
/// Blocking: every operation returns when `recv` holds the result, or throws Error. A wait may spin
/// for at most 50 us before it sleeps.
/// Failure: `abort` makes running and later operations throw the given status in < 10 ms.
class Engine {
 public:
  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  virtual const char* name() const = 0;
  virtual int lanes() const = 0;
  int express_lane() const { return lanes(); }

  /// recv[i] = factor * (op over ranks of send[i]); `send` may equal `recv` (in place), else no
  /// overlap. `op` is kSum, kMin, kMax or kProduct. 16-bit floats are added in fp32. Bit-identical
  /// results on all ranks. `count` may be 0.
  virtual void all_reduce(
      int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) = 0;

  /// So many all-reduces may be under way on one lane.
  static constexpr int kTickets = 4;

  /// An all_reduce in place, in two calls, between which others may begin: for whoever has a buffer
  /// in pieces and gets them one by one. `ticket`, 0 .. kTickets - 1, is none that is under way.
  /// All ranks start the same ones in the same order and finish them in that order; until then
  /// nothing else is issued on the lane, and `data` belongs to the engine, unless a call throws.
  /// An engine may do all the work in `start`, as this one does, or none: `finish` blocks until it
  /// is done.
  virtual void start_all_reduce(
      int lane, int ticket, void* data, std::size_t count, const Reduction& reduction) {
    static_cast<void>(ticket);
    all_reduce(lane, data, data, count, reduction);
  }
  virtual void finish_all_reduce(int lane, int ticket) {
    static_cast<void>(lane);
    static_cast<void>(ticket);
  }

  /// Where all_reduce_moved on a lane has its data, alive as long as the engine; empty if there is
  /// no such operation on it. Any thread.
  virtual SharedSlots slots(int lane) const {
    static_cast<void>(lane);
    return {};
  }

  /// Less is not worth the waits for copies, and is refused.
  static constexpr std::size_t kLeastMovedBytes = std::size_t{256} << 10;

  /// An all_reduce of at least kLeastMovedBytes whose buffers `mover` alone can read and write: it
  /// copies to and from `slots(lane)`. To other ranks it is an all_reduce like any other: some may
  /// take this way, and others that one, for the same operation, with the same results. Copies are
  /// over when it returns, and when it throws.
  virtual void all_reduce_moved(int lane,
                                std::size_t count,
                                const Reduction& reduction,
                                BlockMover& mover) {
    static_cast<void>(lane);
    static_cast<void>(count);
    static_cast<void>(reduction);
    static_cast<void>(mover);
    throw Error(Code::kInternal, std::string("[engines] ") + name() + " has no slots");
  }

  /// A coded all-reduce in the engine's own way, if it has one: an engine of two levels codes only
  /// what travels between hosts, and a rank keeps the residual of its share of its host's sum.
  /// False: it has none, on no rank, and coded_all_reduce does it.
  virtual bool all_reduce_coded(int lane, const CodedReduce& reduce, CodedMemory& memory) {
    static_cast<void>(lane);
    static_cast<void>(reduce);
    static_cast<void>(memory);
    return false;
  }

  /// Among how many ranks a coded all-reduce in blocks on a numbered lane connects every two, where
  /// `ranks` take part. Equal on all of them.
  virtual int exchanging(int ranks) const { return ranks; }

  /// `buffer` of `root` is copied to all ranks.
  virtual void broadcast(int lane, void* buffer, std::size_t bytes, int root) = 0;

  /// Concatenates `bytes_of[r]` bytes of every rank r, in rank order, into `recv` on every rank.
  virtual void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) = 0;

  /// Reduces like all_reduce, but rank r receives only its part: `counts[r]` elements, parts being
  /// laid out in rank order. `send` holds the whole input, `recv` this rank's part; they must not
  /// overlap.
  virtual void reduce_scatter(int lane,
                              const void* send,
                              void* recv,
                              const PerRank& counts,
                              const Reduction& reduction) = 0;

  /// Sends `send_bytes[r]` bytes to every rank r and receives `recv_bytes[r]` from it; both buffers
  /// are contiguous, in rank order. What rank a sends to b is what b expects from a. An engine may
  /// connect every two ranks for it, once more for each lane that such an operation comes to.
  virtual void all_to_all(int lane,
                          const void* send,
                          void* recv,
                          const PerRank& send_bytes,
                          const PerRank& recv_bytes) = 0;

  /// An engine of the same kind, with as many lanes, over a subset of the ranks. A rank's new
  /// number is its index in `members`, which is ascending and includes this rank. `split_id` is a
  /// number that no other split of this engine, or of one that came from it, has had. Collective
  /// over `members`, blocks until all are connected. The new engine must end before this one;
  /// `abort` of this one does not reach it.
  virtual std::unique_ptr<Engine> split(const std::vector<int>& members,
                                        std::uint32_t split_id) = 0;

  /// Seconds since the start during which bytes sent on a numbered lane were unacknowledged: time
  /// spent in the network, not in a rank. 0 if the engine cannot measure it. Any thread.
  virtual double send_busy_s(int lane) const {
    static_cast<void>(lane);
    return 0;
  }

  /// Whether the operation that runs on a lane, the express lane included, waits for other ranks,
  /// and nothing has moved for long. Empty while the lane computes, and if the engine cannot tell.
  /// Any thread.
  virtual LaneWait waits(int lane) const {
    static_cast<void>(lane);
    return {};
  }

  /// From any thread, any number of times; the first status wins.
  virtual void abort(const Status& status) noexcept = 0;
};

}  // namespace aiacc
