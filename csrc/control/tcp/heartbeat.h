#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/base/socket.h"

namespace aiacc {

/// What travels on the connections of heartbeats, little endian.
struct Beat {
  static constexpr std::uint32_t kMark = 0xA1ACBEA7;
  enum Kind : std::uint32_t { kPing = 1, kPong = 2 };

  std::uint32_t mark = kMark;
  std::uint32_t kind = kPing;
  std::uint64_t work = 0;  ///< of the sender's loop thread: odd while it is at work
};
static_assert(sizeof(Beat) == 16, "Beat is a wire format");

/// Who has not looked for so many of kLooksPerTimeout cannot tell who was silent meanwhile.
constexpr int kAbsentLooks = 8;

/// With three digits.
std::string seconds_text(std::chrono::nanoseconds duration);

/// Whether the ranks that this one talks to live.
///
/// A thread of its own answers pings, and sends some while `watch` is called: a rank that is silent
/// for long is frozen, or its link is down. Its connections are its own, so that an answer never
/// waits behind a message, nor for whoever is busy.
///
/// The thread must not lock, allocate, log, or wait for anything but these connections, until it
/// has found a rank that is lost.
class Heartbeat {
 public:
  struct Link {
    int rank;
    Socket socket;
  };
  /// Called by the thread, once.
  using Lost = std::function<void(const Status&)>;

  /// Starts the thread. Throws Error(kEngine) if there is no room for it. `work_limit_s`: how long
  /// the loop thread of another rank may be at one piece of work; 0: for ever.
  Heartbeat(std::vector<Link> links, double peer_timeout_s, double work_limit_s, Lost lost);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Somebody waits for other ranks: watches them for a quarter of the limit. Any thread.
  void watch() noexcept;

  /// The loop thread begins or ends to work. Whoever does its work.
  void work(bool begins) noexcept {
    const std::uint64_t now = work_.load(std::memory_order_relaxed);
    work_.store(now + ((now & 1) == (begins ? 1U : 0U) ? 2 : 1), std::memory_order_relaxed);
  }

  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  struct Peer {
    Socket socket;
    std::string name;
    Beat in;
    std::size_t got = 0;  ///< bytes of `in`
    Beat out;
    std::size_t sent = sizeof(Beat);  ///< bytes of `out`
    bool owes = false;                ///< an answer, for which there was no room
    bool gone = false;                ///< nothing comes any more
    Clock::time_point heard{};
    Clock::time_point asked{};  ///< when a ping was sent that is not answered, or zero
    std::uint64_t work = 0;     ///< as in its last beat
    Clock::time_point work_since{};
  };

  void run() noexcept;
  bool hear(Peer& peer);
  void say(Peer& peer, Beat::Kind kind);
  static void flush(Peer& peer) noexcept;
  void judge(Peer& peer, Clock::time_point now, bool absent);

  const std::chrono::nanoseconds timeout_;
  const std::chrono::nanoseconds work_limit_;
  const Lost lost_;
  Event event_;
  std::vector<Peer> peers_;
  std::vector<pollfd> entries_;
  Clock::time_point looked_{};
  bool over_ = false;  ///< a rank is lost
  std::atomic<Clock::time_point> watch_until_{};
  std::atomic<std::uint64_t> work_{0};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace aiacc
