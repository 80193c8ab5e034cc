#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/socket.h"

namespace aiacc {

using Bytes = std::vector<std::uint8_t>;

/// Ranks whose shares one message may hold: [first, last], and [more_first, more_last] unless
/// empty. All ranks, if nothing else is said.
struct RankBlock {
  int first = 0;
  int last = std::numeric_limits<int>::max();
  int more_first = 0;
  int more_last = -1;

  /// Whether it has all ranks from `from` to `to`.
  bool has(int from, int to) const {
    const bool adjoin = last != std::numeric_limits<int>::max() && last + 1 == more_first;
    return (from >= first && to <= last) || (from >= more_first && to <= more_last) ||
           (adjoin && from >= first && to <= more_last);
  }
};

/// The flags with which a message of the coordinators begins; 0 if it is shorter.
inline std::uint32_t flags_of(const Bytes& message) {
  std::uint32_t flags = 0;
  if (message.size() >= sizeof flags) {
    std::memcpy(&flags, message.data(), sizeof flags);
  }
  return flags;
}

/// Liveness checks per AIACC_PEER_TIMEOUT_S while a thread waits. Enough of them that a peer which
/// answers just before the limit survives, and that the limit is still met.
constexpr int kLooksPerTimeout = 32;

/// Small messages between the coordinators of all ranks.
///
/// Threads: one thread at a time is the *progress thread*; which one is the coordinator's business.
/// Methods are the progress thread's unless they say "any thread".
/// Nothing is sent while no rank has work: an idle plane uses no CPU.
class ControlPlane {
 public:
  /// Folds `theirs`, which holds shares of no other ranks than `from`, into `mine`. Associative and
  /// commutative, so that every rank ends up with the same bytes whatever the order. Throws
  /// Error(kPeerLost) if `theirs` is not what a rank may send.
  using Combine = std::function<void(Bytes& mine, const Bytes& theirs, const RankBlock& from)>;

  ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;
  virtual ~ControlPlane() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// One round. Collective; a rank that makes no progress yet sees `round_pending`.
  /// Blocks until every rank has joined. Throws the fatal Error (peer lost, aborted, protocol).
  virtual void all_reduce(Bytes& message, const Combine& combine) = 0;

  /// Processes what has arrived, without blocking: answers pings, throws if a peer is gone or
  /// aborted.
  virtual void service() = 0;

  /// True when some rank has started the next round.
  virtual bool round_pending() const = 0;
  /// The flags of all shares of it that have come here, combined with OR: see `flags_of`.
  virtual std::uint32_t pending_flags() const = 0;

  /// Sleeps until there is something to `service`, `wake` is called, or the deadline passes.
  /// Any thread, several at once; reads nothing itself. What ended it goes on ending every wait
  /// until the progress thread takes it in (`service`, `take_wakes`): a thread that sleeps here and
  /// then has to queue for its turn as progress thread must not keep the wake-up from the one whose
  /// turn it is.
  virtual void wait(Clock::time_point deadline) = 0;
  /// Clears pending wake-ups. Check every condition that they may have signalled afterwards.
  virtual void take_wakes() noexcept = 0;

  /// Ends a `wait`; remembered when nobody waits. Any thread, async-signal-safe.
  virtual void wake() noexcept = 0;

  /// Makes one `wait` return at the earliest deadline given since the last one that did. Any
  /// thread.
  virtual void wake_at(Clock::time_point deadline) noexcept = 0;

  /// While claimed, messages end only `wait_claimed`; `wait` ends on `wake` and when the grace
  /// period expires, so that it does not race a caller that is about to return.
  virtual void claim() = 0;
  virtual void unclaim() noexcept = 0;
  /// Starts the grace period: unless `claim` is called again, `wait` returns after `grace`.
  virtual void unclaim_after(std::chrono::microseconds grace) noexcept = 0;
  /// The progress thread's `wait`, with `take_wakes`.
  virtual void wait_claimed(Clock::time_point deadline) = 0;

  /// Pings silent peers; throws Error(kPeerLost) when one has not answered within
  /// the time limit. Progress thread only, called kLooksPerTimeout times in that limit while
  /// operations are outstanding: a caller that has not checked for long was itself stopped, and
  /// pings again.
  virtual void check_peers() = 0;

  /// Makes the running and every later `all_reduce` of this rank throw `status`; the first one
  /// wins. Any thread.
  virtual void interrupt(const Status& status) noexcept = 0;

  /// Broadcasts that the job ends here and why (kShutdown: orderly). Best effort, once; receivers
  /// forward it. Progress thread only. Nothing can be sent afterwards.
  virtual void abort(const Status& status) noexcept = 0;

  /// Seconds to the farthest of the ranks that this one is connected to and back, at best; 0 if
  /// that is not known. Any thread.
  virtual double round_trip_s() const { return 0; }

  /// Rounds completed and bytes sent since the start, heartbeats included.
  virtual std::uint64_t rounds() const = 0;
  virtual std::uint64_t bytes_sent() const = 0;
};

}  // namespace aiacc
