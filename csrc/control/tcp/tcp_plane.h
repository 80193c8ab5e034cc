#pragma once

#include <poll.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/base/event.h"
#include "csrc/base/spin.h"
#include "csrc/control/control_plane.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/control/tcp/frame.h"

namespace aiacc {

/// Who talks to whom in recursive doubling over `size` ranks. Pure.
///
/// The first p ranks (p the largest power of two) exchange with rank XOR 2^k in stage k; rank p+i
/// folds its share into rank i before, and gets the result after.
struct DoublingPlan {
  std::vector<int> stages;        ///< partner of each stage; empty for ranks >= p
  std::vector<RankBlock> blocks;  ///< whose shares the partner has by then
  int extra = -1;                 ///< the rank that folds into this one, or -1
  int proxy = -1;                 ///< the rank that this one folds into, or -1

  static DoublingPlan of(int rank, int size);
};

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
  void wait(Clock::time_point deadline) override;
  void wake() noexcept override { event_.set(); }
  void wake_at(Clock::time_point deadline) noexcept override;
  void claim() override;
  void unclaim() noexcept override;
  void unclaim_after(std::chrono::microseconds grace) noexcept override;
  void wait_claimed(Clock::time_point deadline) override;
  void take_wakes() noexcept override;
  void check_peers() override;
  void interrupt(const Status& status) noexcept override;
  void abort(const Status& status) noexcept override;
  std::uint64_t rounds() const override { return rounds_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  struct Peer {
    Peer(int peer_rank, Socket peer_socket)
        : rank(peer_rank),
          name("rank " + std::to_string(peer_rank)),
          socket(std::move(peer_socket)),
          decoder(name) {}
    int rank;
    std::string name;
    Socket socket;
    FrameDecoder decoder;
    RecyclingQueue<Frame> arrived;  ///< decoded, not looked at
    RecyclingQueue<Frame> rounds;   ///< kRound and kJoin frames in order of arrival
    Clock::time_point heard = Clock::now();
    Clock::time_point asked{};  ///< when an unanswered ping was sent, or zero
    Bytes outbox;               ///< encoded frames, each to be sent to its end before the next
    std::size_t out = 0;        ///< bytes of `outbox` that the connection has taken
    std::uint64_t taken = 0;    ///< the same, of all frames so far
    std::uint64_t arrived_there = 0;  ///< of these, when last looked at
    bool wants_room = false;          ///< whether epoll tells when the connection takes more
    bool pong_due = false;            ///< for pings that came
    bool left = false;                ///< it ended the job in order; nothing follows

    bool flushed() const { return out == outbox.size(); }
  };

  void close_descriptors() noexcept;
  Peer& peer_of(int rank);
  void send(Peer& peer, FrameType type, std::uint8_t stage, const Bytes& payload);
  void post(Peer& peer, FrameType type, std::uint8_t stage, const Bytes& payload);
  void flush(Peer& peer);
  void want_room(Peer& peer, bool wanted);
  void answer_pings(Peer& peer);
  static bool moves_bytes(Peer& peer);
  static bool say_farewell(Peer& peer) noexcept;
  void wait_in_round(Clock::time_point start);
  const Bytes& receive(Peer& peer, std::uint8_t stage);
  void take_share(Peer& peer,
                  std::uint8_t stage,
                  const RankBlock& from,
                  Bytes& message,
                  const Combine& combine);
  bool take_round(Peer& peer, std::uint8_t stage);
  bool read_from(Peer& peer);
  void sort_arrived(Peer& peer);
  void read_all();
  void handle(Peer& peer, const Frame& frame);
  static void sleep_on(int epoll, Clock::time_point deadline);
  void watch_inner(bool enabled) noexcept;
  void throw_if_interrupted() const;

  const int rank_;
  const int size_;
  const DoublingPlan plan_;
  const std::chrono::nanoseconds peer_timeout_;
  Clock::time_point looked_{};  ///< at the peers
  Spin spin_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::uint32_t round_ = 0;  ///< number of the next round
  bool aborted_ = false;
  Status leaving_;  ///< of the first peer that left
  // Scratch, kept for its memory.
  Frame outgoing_;
  Bytes received_;
  std::vector<std::uint8_t> read_buffer_;
  std::vector<pollfd> full_;  ///< connections that do not take the reason for the end yet

  Event event_;
  int timer_ = -1;
  std::atomic<bool> timer_armed_{false};
  bool claimed_ = false;
  int grace_timer_ = -1;
  std::atomic<bool> grace_armed_{false};
  int inner_ = -1;  ///< epoll over sockets, event and timer: what a progress thread sleeps on
  int outer_ = -1;  ///< epoll over event, grace timer and, unless claimed, `inner_`: for `wait`
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<bool> interrupted_{false};
  mutable std::mutex interrupt_mutex_;
  Status interrupt_status_;
};

}  // namespace aiacc
