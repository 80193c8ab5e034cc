#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/base/spin.h"
#include "csrc/control/round.h"
#include "csrc/control/shm/host_page.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/control/tcp/control_connection.h"
#include "csrc/control/tcp/control_poller.h"
#include "csrc/control/tcp/doubling_plan.h"
#include "csrc/control/tcp/heartbeat.h"

namespace aiacc {

struct ControlPlaneOptions {
  double peer_timeout_s = 4.0;
  double spin_us = 50;
  double stall_fail_s = 0;  ///< as CoordinatorOptions has it
  /// By rank: a number that is equal for ranks of one host; empty: every rank is its own.
  std::vector<int> host_of = {};
  double connect_timeout_s = 30;
};

/// Small messages between the coordinators of all ranks.
///
/// Ranks of a host meet in memory, on a HostPage; the lowest of them speaks for the host, with
/// log2(hosts) TCP connections to others, in rounds of recursive doubling. Every other rank has one
/// connection, to its speaker: for reasons of an end, for what is too large for the page, and for
/// everything where ranks of a host cannot share memory.
///
/// Threads: rounds are run by one thread at a time, the *runner*; which one is the coordinator's
/// business. Methods are the runner's unless they say otherwise.
/// Nothing is sent while no rank has work: an idle plane uses no CPU.
/// Detects: a dead peer by its closed socket, at once; a frozen one or a dead link by heartbeats
/// that are sent only while somebody waits, within `peer_timeout_s`. Nothing else judges: no timer
/// of the kernel. Reports either to all ranks.
class ControlPlane {
 public:
  /// Collective, blocks. `connector` may be null for a job of one rank. Throws what
  /// Connector::establish throws.
  ControlPlane(Connector* connector, const ControlPlaneOptions& options);
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// One round. Collective; a rank that makes no progress yet sees `round_pending`.
  /// Blocks until every rank has joined. Throws the fatal Error (peer lost, aborted, protocol).
  void all_reduce(Bytes& message, const Combine& combine, Runner runner);
  /// Whether a caller may run rounds: only where these need no thread that sleeps on connections.
  bool lets_callers_run() const { return is_one_host() && (page_ != nullptr || size_ == 1); }

  /// Processes what has arrived, without blocking; throws if a peer is gone or aborted.
  void service();

  /// True when some rank has started the next round.
  bool round_pending() const;
  /// The flags of all shares of it that have come here, combined with OR: see `flags_of`.
  std::uint32_t pending_flags() const;

  /// Sleeps until there is something to `service`, `wake` is called, or the deadline passes, and
  /// forgets the wake-ups until then: check every condition that they may have signalled
  /// afterwards. False if no more than time has passed. The loop thread's, also while a caller is
  /// the runner.
  bool wait(Clock::time_point deadline);
  /// Ends a `wait`; remembered when nobody waits. Any thread, async-signal-safe.
  void wake() noexcept { poller_.wake(); }
  /// Makes one `wait` return at the earliest deadline given since the last one that did. Any
  /// thread.
  void wake_at(Clock::time_point deadline) noexcept { poller_.wake_at(deadline); }
  /// Makes a caller that sleeps in a round look at what has arrived. The loop thread's, which
  /// cannot look itself before it is the runner.
  void nudge() noexcept {
    if (page_ != nullptr) {
      page_->nudge();
    }
  }

  /// Whether this rank has a share for the next round as soon as another one starts it. Until it
  /// has, others may let it sleep for a while. Any thread.
  void has_share(bool has) noexcept {
    if (page_ != nullptr) {
      page_->has_share(has);
    }
  }

  /// Somebody waits for other ranks: for a while after the last call, they are asked whether they
  /// live, and whoever is silent for too long ends the job as `interrupt` does, with
  /// Error(kPeerLost). Called kLooksPerTimeout times in the limit.
  void watch_peers();
  /// The loop thread begins to work, or ends; other ranks may look whether it is stuck.
  void at_work(bool begins) noexcept { heartbeat_->work(begins); }

  /// Makes the running and every later `all_reduce` of this rank throw `status`; the first one
  /// wins. Any thread.
  void interrupt(const Status& status) noexcept;

  /// Broadcasts that the job ends here and why (kShutdown: orderly). Best effort, once; receivers
  /// forward it. Nothing can be sent afterwards.
  void abort(const Status& status) noexcept;

  /// Seconds to the farthest of the ranks that this one is connected to and back, at best; 0 if
  /// that is not known. Any thread.
  double round_trip_s() const;

  /// Rounds completed and bytes sent since the start, heartbeats included.
  std::uint64_t rounds() const { return rounds_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_sent() const {
    return bytes_sent_.load(std::memory_order_relaxed) + heartbeat_->bytes_sent();
  }

 private:
  using Partner = DoublingPlan::Partner;

  std::unique_ptr<HostPage> meet_in_memory(Connector* connector, double timeout_s) const;
  void leave() noexcept;
  bool is_one_host() const { return plan_.mates.size() == static_cast<std::size_t>(size_); }
  ControlConnection& peer_of(int rank);

  // control_plane_rounds.cc
  bool meet_mates(Bytes& message, const Combine& combine);
  void meet_partners(Bytes& message, const Combine& combine);
  void fold_into_proxy(Bytes& message);
  void call_in(ControlConnection& peer, const Bytes& message);
  const Bytes& flags_alone(const Bytes& message);
  void show_share(const Bytes& share);
  template <class Ready>
  bool spin(int glances, Ready ready);
  template <class Ready>
  void await_mates(Ready ready);
  void sleep_until(Clock::time_point until);
  void send(ControlConnection& peer, FrameType type, std::uint8_t stage, const Bytes& payload);
  const Bytes& receive(ControlConnection& peer, std::uint8_t stage);
  void wait_in_round(ControlConnection& peer, Clock::time_point start);
  bool look_in_round(Clock::time_point start);
  void take(const Partner& from, const Bytes& share, Bytes& message, const Combine& combine);

  void flush(ControlConnection& peer);
  bool read_from(ControlConnection& peer);
  void read_all();
  void throw_if_interrupted() const;

  const int rank_;
  const int size_;
  const DoublingPlan plan_;
  const std::chrono::nanoseconds peer_timeout_;
  Clock::time_point looked_{};  ///< at the peers
  Runner runner_ = Runner::kLoop;
  bool call_all_ = false;  ///< whether this round needs those, too, that have no share for it
  Spin spin_;
  ControlPoller poller_;
  std::vector<std::unique_ptr<ControlConnection>> peers_;
  std::unique_ptr<HostPage> page_;  ///< null: this host has one rank, or shares no memory
  std::unique_ptr<Heartbeat> heartbeat_;
  std::uint32_t round_ = 0;  ///< number of the next round
  bool aborted_ = false;
  Status leaving_;                        ///< of the first peer that left
  std::pair<std::uint64_t, int> seen_{};  ///< the loop thread's: rounds, and shares of the next
  // Scratch, kept for its memory.
  Frame outgoing_;
  Bytes received_;
  Bytes call_;
  std::vector<std::uint8_t> read_buffer_;
  std::vector<pollfd> full_;  ///< connections that do not take the reason for the end yet

  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<bool> interrupted_{false};
  mutable std::mutex interrupt_mutex_;
  Status interrupt_status_;
};

}  // namespace aiacc
