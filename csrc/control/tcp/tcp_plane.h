#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/base/spin.h"
#include "csrc/control/control_plane.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/control/tcp/control_connection.h"
#include "csrc/control/tcp/control_poller.h"
#include "csrc/control/tcp/doubling_plan.h"

namespace aiacc {

/// The control mesh: log2(N) TCP connections per rank, rounds by recursive doubling.
///
/// Detects: a dead peer by its closed socket, at once; a frozen one or a dead link by pings that
/// are sent only while somebody waits, within `peer_timeout_s`. Nothing else judges: no timer of
/// the kernel, and no peer whose kernel still takes in what is before the ping. Reports either to
/// all ranks.
class TcpPlane : public ControlPlane {
 public:
  TcpPlane(Connector& connector, double peer_timeout_s, double spin_us);
  ~TcpPlane() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(Bytes& message, const Combine& combine) override;
  void service() override;
  bool round_pending() const override;
  std::uint32_t pending_flags() const override;
  void wait(Clock::time_point deadline) override { poller_.wait(deadline); }
  void wake() noexcept override { poller_.wake(); }
  void wake_at(Clock::time_point deadline) noexcept override { poller_.wake_at(deadline); }
  void claim() override { poller_.claim(); }
  void unclaim() noexcept override { poller_.unclaim(); }
  void unclaim_after(std::chrono::microseconds grace) noexcept override {
    poller_.unclaim_after(grace);
  }
  void wait_claimed(Clock::time_point deadline) override { poller_.wait_claimed(deadline); }
  void take_wakes() noexcept override { poller_.take_wakes(); }
  void check_peers() override;
  void interrupt(const Status& status) noexcept override;
  void abort(const Status& status) noexcept override;
  double round_trip_s() const override;
  std::uint64_t rounds() const override { return rounds_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  ControlConnection& peer_of(int rank);
  void send(ControlConnection& peer, FrameType type, std::uint8_t stage, const Bytes& payload);
  void post(ControlConnection& peer, FrameType type, std::uint8_t stage, const Bytes& payload);
  void flush(ControlConnection& peer);
  void want_room(ControlConnection& peer, bool wanted);
  void answer_pings(ControlConnection& peer);
  static bool say_farewell(ControlConnection& peer) noexcept;
  void wait_in_round(Clock::time_point start);
  const Bytes& receive(ControlConnection& peer, std::uint8_t stage);
  void take_share(ControlConnection& peer,
                  std::uint8_t stage,
                  const RankBlock& from,
                  Bytes& message,
                  const Combine& combine);
  bool read_from(ControlConnection& peer);
  void take_notices(ControlConnection& peer);
  void read_all();
  void throw_if_interrupted() const;

  const int rank_;
  const int size_;
  const DoublingPlan plan_;
  const std::chrono::nanoseconds peer_timeout_;
  Clock::time_point looked_{};  ///< at the peers
  Spin spin_;
  ControlPoller poller_;
  std::vector<std::unique_ptr<ControlConnection>> peers_;
  std::uint32_t round_ = 0;  ///< number of the next round
  bool aborted_ = false;
  Status leaving_;  ///< of the first peer that left
  // Scratch, kept for its memory.
  Frame outgoing_;
  Frame notice_;
  Bytes received_;
  std::vector<std::uint8_t> read_buffer_;
  std::vector<pollfd> full_;  ///< connections that do not take the reason for the end yet

  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<bool> interrupted_{false};
  mutable std::mutex interrupt_mutex_;
  Status interrupt_status_;
};

}  // namespace aiacc
