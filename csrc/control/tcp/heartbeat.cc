#include "csrc/control/tcp/heartbeat.h"

#include <algorithm>
#include <cstdio>

#include "csrc/base/thread.h"
#include "csrc/control/round.h"

namespace aiacc {
namespace {

/// In looks. A peer is asked after so much silence, and lost so long after that; the rest of the
/// time limit is for looks that come late.
constexpr int kSilentLooks = 2;
constexpr int kPatientLooks = 26;
/// After the last call of `watch`.
constexpr int kWatchLooks = 8;
/// One peer has so many answered before the others have their turn.
constexpr int kMostBeats = 16;

}  // namespace

std::string seconds_text(std::chrono::nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", std::chrono::duration<double>(duration).count());
  return text;
}

Heartbeat::Heartbeat(std::vector<Link> links, double peer_timeout_s, double work_limit_s, Lost lost)
    : timeout_(duration_of(peer_timeout_s)),
      work_limit_(duration_of(work_limit_s)),
      lost_(std::move(lost)),
      entries_(links.size() + 1) {
  for (Link& link : links) {
    Peer& peer = peers_.emplace_back();
    peer.name = "rank " + std::to_string(link.rank);
    peer.socket = std::move(link.socket);
  }
  if (!peers_.empty()) {
    thread_ = start_thread("aiacc beat", [this] { run(); });
  }
}

Heartbeat::~Heartbeat() {
  stopping_.store(true);
  event_.set();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Heartbeat::watch() noexcept {
  const auto now = Clock::now();
  const auto before = watch_until_.exchange(now + kWatchLooks * timeout_ / kLooksPerTimeout);
  if (before <= now) {
    event_.set();
  }
}

void Heartbeat::run() noexcept {
  const auto look_every = timeout_ / kLooksPerTimeout;
  while (!stopping_.load()) {
    const bool watching = !over_ && watch_until_.load() > Clock::now();
    entries_[0] = {event_.fd(), POLLIN, 0};
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const Peer& peer = peers_[i];
      const bool full = peer.sent < sizeof(Beat);
      entries_[i + 1] = {
          peer.gone ? -1 : peer.socket.fd(), static_cast<short>(POLLIN | (full ? POLLOUT : 0)), 0};
    }
    try {
      poll_until(entries_.data(),
                 entries_.size(),
                 watching ? Clock::now() + look_every : Clock::time_point::max());
      event_.clear();
      for (Peer& peer : peers_) {
        for (int beat = 0; beat < kMostBeats && hear(peer); ++beat) {
        }
      }
      const auto now = Clock::now();
      if (watching && now - looked_ >= look_every) {
        const bool absent = now - looked_ >= kAbsentLooks * look_every;
        looked_ = now;
        for (Peer& peer : peers_) {
          judge(peer, now, absent);
        }
      }
    } catch (const Error& error) {
      over_ = true;
      lost_(error.status());
    }
  }
}

/// Takes in what has come, and answers; whether it was anything. A connection that has ended is no
/// loss by itself: most often the rank has given its reason on the other one.
bool Heartbeat::hear(Peer& peer) {
  flush(peer);
  if (peer.gone) {
    return false;
  }
  std::size_t got = 0;
  try {
    auto* bytes = reinterpret_cast<std::uint8_t*>(&peer.in);
    got = peer.socket.recv_some(bytes + peer.got, sizeof(Beat) - peer.got, peer.name);
  } catch (const Error&) {
    peer.gone = true;
  }
  peer.got += got;
  if (peer.got == sizeof(Beat)) {
    peer.got = 0;
    if (peer.in.mark != Beat::kMark ||
        (peer.in.kind != Beat::kPing && peer.in.kind != Beat::kPong)) {
      throw Error(Code::kPeerLost,
                  "[control] " + peer.name + " sent a heartbeat of kind " +
                      std::to_string(peer.in.kind) +
                      ", which is not aiacc's protocol; do all ranks run the same version?");
    }
    peer.heard = Clock::now();
    peer.asked = {};
    peer.owes = peer.owes || peer.in.kind == Beat::kPing;
    if (peer.in.work != peer.work) {
      peer.work = peer.in.work;
      peer.work_since = peer.heard;
    }
  }
  if (peer.owes && peer.sent == sizeof(Beat)) {
    peer.owes = false;
    say(peer, Beat::kPong);
  }
  return got > 0;
}

void Heartbeat::say(Peer& peer, Beat::Kind kind) {
  peer.out.kind = kind;
  peer.out.work = work_.load(std::memory_order_relaxed);
  peer.sent = 0;
  bytes_sent_.fetch_add(sizeof(Beat), std::memory_order_relaxed);
  flush(peer);
}

/// Sends what there is room for; the rest follows.
void Heartbeat::flush(Peer& peer) noexcept {
  if (peer.sent == sizeof(Beat) || peer.gone) {
    return;
  }
  try {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&peer.out);
    peer.sent += peer.socket.send_some(bytes + peer.sent, sizeof(Beat) - peer.sent, peer.name);
  } catch (const Error&) {
    peer.gone = true;
  }
}

/// Throws if the rank is lost. `absent`: this one has not looked for long.
void Heartbeat::judge(Peer& peer, Clock::time_point now, bool absent) {
  if (absent) {
    peer.asked = {};
    peer.work_since = now;
  }
  const auto look_every = timeout_ / kLooksPerTimeout;
  if ((peer.work & 1) != 0 && work_limit_.count() > 0 && now - peer.work_since >= work_limit_) {
    throw Error(Code::kTimeout,
                "[control] " + peer.name + " answers, but its loop thread has been at one piece " +
                    "of work for " + seconds_text(now - peer.work_since) +
                    " s (AIACC_STALL_FAIL_S); is its log or its disk stuck?");
  }
  if (peer.asked == Clock::time_point{}) {
    if (now - peer.heard >= kSilentLooks * look_every) {
      peer.asked = now;
      if (!peer.gone && peer.sent == sizeof(Beat)) {
        say(peer, Beat::kPing);
      }
    }
    return;
  }
  if (now - peer.asked >= kPatientLooks * look_every) {
    throw Error(Code::kPeerLost,
                "[control] " + peer.name + " has not answered within " + seconds_text(timeout_) +
                    " s (AIACC_PEER_TIMEOUT_S): it is frozen or its link is down");
  }
}

}  // namespace aiacc
