#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/socket.h"
#include "csrc/control/rank_block.h"

namespace aiacc {

using Bytes = std::vector<std::uint8_t>;

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

/// Who runs rounds: the loop thread, or a caller while that sleeps or waits for its turn.
enum class Runner { kLoop, kCaller };

/// Small messages between the coordinators of all ranks.
///
/// Threads: rounds are run by one thread at a time, the *runner*; which one is the coordinator's
/// business. Methods are the runner's unless they say otherwise.
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
  virtual void all_reduce(Bytes& message, const Combine& combine, Runner runner) = 0;
  /// Whether a caller may run rounds: only where these need no thread that sleeps on connections.
  virtual bool lets_callers_run() const = 0;

  /// Processes what has arrived, without blocking; throws if a peer is gone or aborted.
  virtual void service() = 0;

  /// True when some rank has started the next round.
  virtual bool round_pending() const = 0;
  /// The flags of all shares of it that have come here, combined with OR: see `flags_of`.
  virtual std::uint32_t pending_flags() const = 0;

  /// Sleeps until there is something to `service`, `wake` is called, or the deadline passes, and
  /// forgets the wake-ups until then: check every condition that they may have signalled
  /// afterwards. False if no more than time has passed. The loop thread's, also while a caller is
  /// the runner.
  virtual bool wait(Clock::time_point deadline) = 0;
  /// Ends a `wait`; remembered when nobody waits. Any thread, async-signal-safe.
  virtual void wake() noexcept = 0;
  /// Makes one `wait` return at the earliest deadline given since the last one that did. Any
  /// thread.
  virtual void wake_at(Clock::time_point deadline) noexcept = 0;
  /// Makes a caller that sleeps in a round look at what has arrived. The loop thread's, which
  /// cannot look itself before it is the runner.
  virtual void nudge() noexcept {}

  /// Whether this rank has a share for the next round as soon as another one starts it. Until it
  /// has, others may let it sleep for a while. Any thread.
  virtual void has_share(bool /*has*/) noexcept {}

  /// Somebody waits for other ranks: for a while after the last call, they are asked whether they
  /// live, and whoever is silent for too long ends the job as `interrupt` does, with
  /// Error(kPeerLost). Called kLooksPerTimeout times in the limit.
  virtual void watch_peers() = 0;
  /// The loop thread begins to work, or ends; other ranks may look whether it is stuck.
  virtual void at_work(bool /*begins*/) noexcept {}

  /// Makes the running and every later `all_reduce` of this rank throw `status`; the first one
  /// wins. Any thread.
  virtual void interrupt(const Status& status) noexcept = 0;

  /// Broadcasts that the job ends here and why (kShutdown: orderly). Best effort, once; receivers
  /// forward it. Nothing can be sent afterwards.
  virtual void abort(const Status& status) noexcept = 0;

  /// Seconds to the farthest of the ranks that this one is connected to and back, at best; 0 if
  /// that is not known. Any thread.
  virtual double round_trip_s() const { return 0; }

  /// Rounds completed and bytes sent since the start, heartbeats included.
  virtual std::uint64_t rounds() const = 0;
  virtual std::uint64_t bytes_sent() const = 0;
};

}  // namespace aiacc
