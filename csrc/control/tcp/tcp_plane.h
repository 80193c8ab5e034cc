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
#include "csrc/control/control_plane.h"
#include "csrc/control/shm/host_page.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/control/tcp/control_connection.h"
#include "csrc/control/tcp/control_poller.h"
#include "csrc/control/tcp/doubling_plan.h"
#include "csrc/control/tcp/heartbeat.h"

namespace aiacc {

struct TcpPlaneOptions {
  double peer_timeout_s = 4.0;
  double spin_us = 50;
  double stall_fail_s = 0;  ///< as CoordinatorOptions has it
  /// By rank: a number that is equal for ranks of one host; empty: every rank is its own.
  std::vector<int> host_of = {};
  double connect_timeout_s = 30;
};

/// The control mesh. Ranks of a host meet in memory, on a HostPage; the lowest of them speaks for
/// the host, with log2(hosts) TCP connections to others, in rounds of recursive doubling. Every
/// other rank has one connection, to its speaker: for reasons of an end, for what is too large for
/// the page, and for everything where ranks of a host cannot share memory.
///
/// Detects: a dead peer by its closed socket, at once; a frozen one or a dead link by heartbeats
/// that are sent only while somebody waits, within `peer_timeout_s`. Nothing else judges: no timer
/// of the kernel. Reports either to all ranks.
class TcpPlane : public ControlPlane {
 public:
  /// Collective, blocks. `connector` may be null for a job of one rank. Throws what
  /// Connector::establish throws.
  TcpPlane(Connector* connector, const TcpPlaneOptions& options);
  ~TcpPlane() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(Bytes& message, const Combine& combine, Runner runner) override;
  bool lets_callers_run() const override {
    return is_one_host() && (page_ != nullptr || size_ == 1);
  }
  void service() override;
  bool round_pending() const override;
  std::uint32_t pending_flags() const override;
  bool wait(Clock::time_point deadline) override;
  void wake() noexcept override { poller_.wake(); }
  void wake_at(Clock::time_point deadline) noexcept override { poller_.wake_at(deadline); }
  void nudge() noexcept override {
    if (page_ != nullptr) {
      page_->nudge();
    }
  }
  void has_share(bool has) noexcept override {
    if (page_ != nullptr) {
      page_->has_share(has);
    }
  }
  void watch_peers() override;
  void at_work(bool begins) noexcept override { heartbeat_->work(begins); }
  void interrupt(const Status& status) noexcept override;
  void abort(const Status& status) noexcept override;
  double round_trip_s() const override;
  std::uint64_t rounds() const override { return rounds_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_sent() const override {
    return bytes_sent_.load(std::memory_order_relaxed) + heartbeat_->bytes_sent();
  }

 private:
  using Partner = DoublingPlan::Partner;

  std::unique_ptr<HostPage> meet_in_memory(Connector* connector, double timeout_s) const;
  void leave() noexcept;
  bool is_one_host() const { return plan_.mates.size() == static_cast<std::size_t>(size_); }
  ControlConnection& peer_of(int rank);

  // tcp_plane_rounds.cc
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
