#include "csrc/control/tcp/tcp_plane.h"

#include <sys/socket.h>

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/base/tcp_info.h"

namespace aiacc {
namespace {

constexpr std::uint8_t kFoldIn = 254;
constexpr std::uint8_t kResult = 255;
constexpr std::size_t kReadBytes = 64 << 10;
/// For telling all peers of an abort. Sockets have room for it, unless a peer does not read, or is
/// in the middle of a long frame: so long after the last bytes that a peer took.
constexpr std::chrono::milliseconds kAbortPatience{1000};

/// Looks. Who has not looked for so long cannot tell who was silent meanwhile.
constexpr int kAbsentLooks = 8;

}  // namespace

TcpPlane::TcpPlane(Connector& connector, double peer_timeout_s, double spin_us)
    : rank_(connector.rank()),
      size_(connector.size()),
      plan_(DoublingPlan::of(rank_, size_)),
      peer_timeout_(static_cast<long long>(peer_timeout_s * 1e9)),
      spin_(std::chrono::nanoseconds(static_cast<long long>(spin_us * 1e3))),
      read_buffer_(kReadBytes) {
  std::vector<int> partners = plan_.stages;
  for (const int other : {plan_.extra, plan_.proxy}) {
    if (other >= 0) {
      partners.push_back(other);
    }
  }
  std::vector<ChannelSpec> specs;
  specs.reserve(partners.size());
  for (const int partner : partners) {
    specs.push_back({partner, ChannelKind::kControl, 0, partner < rank_});
  }
  std::vector<Socket> sockets = connector.establish(specs);
  for (std::size_t i = 0; i < partners.size(); ++i) {
    peers_.push_back(std::make_unique<ControlConnection>(partners[i], std::move(sockets[i])));
  }
  full_.reserve(peers_.size());
  for (const auto& peer : peers_) {
    poller_.add(peer->fd());
  }
}

TcpPlane::~TcpPlane() {
  // Closing with unread bytes resets the connection and may destroy what the peer has not read
  // yet: read until it closes too. A live peer's background thread answers an abort at once.
  const auto deadline = Clock::now() + std::chrono::milliseconds(500);
  for (const auto& peer : peers_) {
    ::shutdown(peer->fd(), SHUT_WR);
  }
  for (const auto& peer : peers_) {
    try {
      while (Clock::now() < deadline) {
        if (!peer->discard_some(read_buffer_)) {
          pollfd entry{peer->fd(), POLLIN, 0};
          poll_until(&entry, 1, deadline);
        }
      }
    } catch (const Error&) {
      // Closed on the other side as well: done.
    }
  }
}

void TcpPlane::all_reduce(Bytes& message, const Combine& combine) {
  throw_if_interrupted();
  if (plan_.proxy >= 0) {
    ControlConnection& proxy = peer_of(plan_.proxy);
    send(proxy, FrameType::kRound, kFoldIn, message);
    message = receive(proxy, kResult);
  } else {
    if (plan_.extra >= 0) {
      ControlConnection& extra = peer_of(plan_.extra);
      read_from(extra);
      if (!extra.has_rounds()) {
        const auto flags_end = std::min(message.size(), sizeof(std::uint32_t));
        send(extra,
             FrameType::kJoin,
             0,
             {message.begin(), message.begin() + static_cast<std::ptrdiff_t>(flags_end)});
      }
      take_share(extra, kFoldIn, {extra.rank(), extra.rank()}, message, combine);
    }
    for (std::size_t k = 0; k < plan_.stages.size(); ++k) {
      ControlConnection& partner = *peers_[k];
      send(partner, FrameType::kRound, static_cast<std::uint8_t>(k), message);
      take_share(partner, static_cast<std::uint8_t>(k), plan_.blocks[k], message, combine);
    }
    if (plan_.extra >= 0) {
      send(peer_of(plan_.extra), FrameType::kRound, kResult, message);
    }
  }
  ++round_;
  rounds_.fetch_add(1, std::memory_order_relaxed);
}

/// What is wrong with the share of a peer is said with its rank.
void TcpPlane::take_share(ControlConnection& peer,
                          std::uint8_t stage,
                          const RankBlock& from,
                          Bytes& message,
                          const Combine& combine) {
  const Bytes& share = receive(peer, stage);
  try {
    combine(message, share, from);
  } catch (const Error& error) {
    throw Error(error.code(),
                "[control] " + peer.name() +
                    (error.code() == Code::kPeerLost
                         ? " cannot be trusted: "
                         : " and rank " + std::to_string(rank_) + " do not fit together: ") +
                    error.what());
  }
}

void TcpPlane::service() {
  read_all();
  // Who left had finished all rounds that it was in. What these decided holds on every rank, so
  // a round that has reached this one comes before the end.
  if (!leaving_.ok() && !round_pending()) {
    throw Error(leaving_);
  }
}

void TcpPlane::read_all() {
  throw_if_interrupted();
  for (const auto& peer : peers_) {
    flush(*peer);
    read_from(*peer);
  }
}

double TcpPlane::round_trip_s() const {
  double farthest = 0;
  for (const auto& peer : peers_) {
    farthest = std::max(farthest, tcp_round_trip_s(peer->fd()));
  }
  return farthest;
}

bool TcpPlane::round_pending() const {
  return std::any_of(
      peers_.begin(), peers_.end(), [this](const auto& peer) { return peer->has_round(round_); });
}

std::uint32_t TcpPlane::pending_flags() const {
  std::uint32_t flags = 0;
  for (const auto& peer : peers_) {
    flags |= peer->round_flags(round_);
  }
  return flags;
}

ControlConnection& TcpPlane::peer_of(int rank) {
  for (const auto& peer : peers_) {
    if (peer->rank() == rank) {
      return *peer;
    }
  }
  throw Error(Code::kInternal, "[control] no connection to rank " + std::to_string(rank));
}

/// A share of the round: returns when the connection has taken it, or who was to have it has left.
/// Then that rank has finished the round, and what it gave to it is here or on its way; or it left
/// in the middle of it, which `receive` notices.
void TcpPlane::send(ControlConnection& peer,
                    FrameType type,
                    std::uint8_t stage,
                    const Bytes& payload) {
  if (peer.left) {
    return;
  }
  post(peer, type, stage, payload);
  for (const auto start = Clock::now(); !peer.flushed() && !peer.left;) {
    // Both ends may be sending more than the buffers hold, and others want answers: keep reading.
    wait_in_round(start);
  }
}

/// Puts a frame behind those that are on their way, and sends what the connection takes now.
void TcpPlane::post(ControlConnection& peer,
                    FrameType type,
                    std::uint8_t stage,
                    const Bytes& payload) {
  // The payload is copied twice here; rounds are a few hundred bytes.
  outgoing_.type = type;
  outgoing_.stage = stage;
  outgoing_.round = round_;
  outgoing_.payload = payload;
  bytes_sent_.fetch_add(peer.put(outgoing_), std::memory_order_relaxed);
  flush(peer);
}

void TcpPlane::flush(ControlConnection& peer) {
  if (peer.flushed()) {
    return;
  }
  if (!peer.left) {
    try {
      peer.send_some();
    } catch (const Error&) {
      // What it had said before it went is the cause.
      while (read_from(peer)) {
      }
      if (!peer.left) {
        throw;
      }
    }
  }
  if (peer.left || peer.flushed()) {
    peer.clear_outbox();
  }
  want_room(peer, !peer.flushed());
  answer_pings(peer);
}

/// Whether the progress thread's sleep ends when the connection takes more.
void TcpPlane::want_room(ControlConnection& peer, bool wanted) {
  if (peer.wants_room != wanted && !peer.left) {
    peer.wants_room = wanted;
    poller_.want_room(peer.fd(), wanted);
  }
}

void TcpPlane::answer_pings(ControlConnection& peer) {
  if (peer.pong_due && !peer.left && peer.flushed()) {
    peer.pong_due = false;  // One answers all that have come.
    post(peer, FrameType::kPong, 0, {});
  }
}

/// Sleeps until something has come or may go, and sees to it; looks after the peers at times.
void TcpPlane::wait_in_round(Clock::time_point start) {
  const auto look = peer_timeout_ / kLooksPerTimeout;
  wait_claimed(Clock::now() + look);
  read_all();
  if (Clock::now() - std::max(start, looked_) >= look) {
    check_peers();
  }
}

/// Waits for this round's frame of `peer`; spins briefly, then sleeps and looks after the peers.
const Bytes& TcpPlane::receive(ControlConnection& peer, std::uint8_t stage) {
  const auto start = Clock::now();
  spin_.begin();
  while (true) {
    // What has come counts, also when its sender is gone by now.
    bool there = peer.take_round(round_, stage, received_);
    if (!there) {
      read_from(peer);
      there = peer.take_round(round_, stage, received_);
    }
    if (there) {
      spin_.end();
      return received_;
    }
    if (peer.left) {
      throw Error(leaving_);
    }
    throw_if_interrupted();
    if (spin_.again()) {
      continue;
    }
    wait_in_round(start);
  }
}

/// Takes in what has come, not all of it if that is much; whether it was anything.
bool TcpPlane::read_from(ControlConnection& peer) {
  if (peer.left) {
    return false;
  }
  try {
    if (!peer.receive_some(read_buffer_)) {
      return false;
    }
  } catch (const Error&) {
    take_notices(peer);  // a reason for its end that came before garbage is the cause
    throw;
  }
  take_notices(peer);
  // After all that has come: who asked may have given the reason for its end since.
  answer_pings(peer);
  return true;
}

void TcpPlane::take_notices(ControlConnection& peer) {
  while (peer.next_notice(notice_)) {
    if (notice_.type == FrameType::kPing) {
      peer.pong_due = true;
    } else if (notice_.type == FrameType::kAbort) {
      const Status status = decode_status(notice_.payload, peer.name());
      if (status.code() != Code::kShutdown) {
        throw Error(status);
      }
      if (leaving_.ok()) {
        leaving_ = status;
      }
      peer.left = true;
      poller_.remove(peer.fd());  // it stays readable
    }
  }
}

void TcpPlane::check_peers() {
  const auto look = peer_timeout_ / kLooksPerTimeout;
  const auto now = Clock::now();
  const bool absent = now - looked_ >= kAbsentLooks * look;
  looked_ = now;
  for (const auto& peer : peers_) {
    if (!peer->left && peer->ping_due(now, absent, peer_timeout_)) {
      post(*peer, FrameType::kPing, 0, {});  // behind what is on its way
    }
  }
}

void TcpPlane::interrupt(const Status& status) noexcept {
  {
    const std::lock_guard lock(interrupt_mutex_);
    if (interrupted_.load(std::memory_order_relaxed)) {
      return;
    }
    interrupt_status_ = status;
    interrupted_.store(true, std::memory_order_release);
  }
  poller_.wake();
}

void TcpPlane::throw_if_interrupted() const {
  if (interrupted_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(interrupt_mutex_);
    throw Error(interrupt_status_);
  }
}

void TcpPlane::abort(const Status& status) noexcept {
  if (aborted_) {
    return;
  }
  aborted_ = true;
  for (const auto& peer : peers_) {
    try {
      // After what is on its way: in the middle of a frame it would be taken for a part of that.
      peer->put({FrameType::kAbort, 0, round_, encode_status(status)});
    } catch (...) {
      // No memory: that peer learns from the closed connection.
    }
  }
  const auto start = Clock::now();
  auto moved = start;
  while (true) {
    const bool patient =
        Clock::now() < std::min<Clock::time_point>(moved + kAbortPatience, start + peer_timeout_);
    full_.clear();
    for (const auto& peer : peers_) {
      const std::size_t before = peer->sent();
      if (!say_farewell(*peer) && patient) {
        full_.push_back({peer->fd(), POLLOUT, 0});
      } else {
        ::shutdown(peer->fd(), SHUT_WR);
      }
      moved = peer->sent() > before ? Clock::now() : moved;
    }
    if (full_.empty()) {
      return;
    }
    poll(full_.data(), full_.size(), static_cast<int>(kAbortPatience.count()));
  }
}

/// Whether nothing is left to be sent, or nobody to take it.
bool TcpPlane::say_farewell(ControlConnection& peer) noexcept {
  try {
    return peer.send_some();
  } catch (const Error&) {
    return true;  // that peer is the lost one
  }
}

}  // namespace aiacc
