#include "csrc/control/tcp/tcp_plane.h"

#include <sys/socket.h>

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/base/tcp_info.h"

namespace aiacc {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
/// For telling all peers of an abort. Sockets have room for it, unless a peer does not read, or is
/// in the middle of a long frame: so long after the last bytes that a peer took.
constexpr std::chrono::milliseconds kAbortPatience{1000};

/// Looks. Who has not looked for so long cannot tell who was silent meanwhile.
constexpr int kAbsentLooks = 8;

}  // namespace

/// Once the other constructor is through, the destructor sees to it that others read the reason.
TcpPlane::TcpPlane(Connector& connector, const TcpPlaneOptions& options)
    : TcpPlane(connector, options, Unwatched()) {
  try {
    heartbeat_->start();
  } catch (const Error& error) {
    abort(reported_by(rank_, error.status()));
    throw;
  }
}

TcpPlane::TcpPlane(Connector& connector, const TcpPlaneOptions& options, Unwatched /*unused*/)
    : rank_(connector.rank()),
      size_(connector.size()),
      hosts_(ranks_by_host(options.host_of, size_)),
      plan_(DoublingPlan::of(rank_, hosts_)),
      peer_timeout_(static_cast<long long>(options.peer_timeout_s * 1e9)),
      spin_(std::chrono::nanoseconds(static_cast<long long>(options.spin_us * 1e3))),
      read_buffer_(kReadBytes) {
  const std::vector<int> partners = plan_.partners();
  std::vector<ChannelSpec> specs;
  for (const ChannelKind kind : {ChannelKind::kControl, ChannelKind::kHeartbeat}) {
    for (const int partner : partners) {
      specs.push_back({partner, kind, 0, partner < rank_});
    }
  }
  std::vector<Socket> sockets = connector.establish(specs);
  std::vector<Heartbeat::Link> links;
  for (std::size_t i = 0; i < partners.size(); ++i) {
    peers_.push_back(std::make_unique<ControlConnection>(partners[i], std::move(sockets[i])));
    links.push_back({partners[i], std::move(sockets[partners.size() + i])});
  }
  full_.reserve(peers_.size());
  for (const auto& peer : peers_) {
    poller_.add(peer->fd());
  }
  page_ = meet_in_memory(connector, options);
  if (page_ != nullptr) {
    poller_.add(page_->bell());
  }
  heartbeat_ = std::make_unique<Heartbeat>(
      std::move(links), options.peer_timeout_s, options.stall_fail_s, [this](const Status& status) {
        interrupt(status);
      });
}

/// Null where the host has no other rank, or one of its ranks cannot share memory.
std::unique_ptr<HostPage> TcpPlane::meet_in_memory(Connector& connector,
                                                   const TcpPlaneOptions& options) {
  for (const std::vector<int>& ranks : hosts_) {
    if (std::binary_search(ranks.begin(), ranks.end(), rank_)) {
      mates_ = ranks;
    }
  }
  for (const int rank : mates_) {
    mate_blocks_.emplace_back(std::vector<int>{rank});
  }
  if (mates_.size() == 1) {
    return nullptr;
  }
  try {
    return std::make_unique<HostPage>(connector, mates_, options.connect_timeout_s);
  } catch (const Error& error) {
    if (error.code() != Code::kEngine) {
      throw;
    }
    if (rank_ == mates_.front()) {
      AIACC_LOG(kInfo) << "[control] the ranks of this host agree over sockets: " << error.what();
    }
    return nullptr;
  }
}

TcpPlane::~TcpPlane() {
  heartbeat_.reset();
  // Closing with unread bytes resets the connection and may destroy what the peer has not read
  // yet: read until it closes too. A live peer's loop thread answers an abort at once.
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
  return (page_ != nullptr && page_->shares(rounds()) > 0) ||
         std::any_of(peers_.begin(), peers_.end(), [this](const auto& peer) {
           return peer->has_round(round_);
         });
}

std::uint32_t TcpPlane::pending_flags() const {
  std::uint32_t flags = 0;
  for (const auto& peer : peers_) {
    flags |= peer->round_flags(round_);
  }
  return page_ == nullptr ? flags : flags | page_->flags(rounds());
}

/// What a page shows stays there: what was seen of it before ends no sleep.
bool TcpPlane::wait(Clock::time_point deadline) {
  if (page_ == nullptr) {
    return poller_.wait(deadline);
  }
  page_->loop_sleeps(true);
  const auto shown = [this] { return std::pair(rounds(), page_->shares(rounds())); };
  const auto now = shown();
  const bool called = (now.second > 0 && now != seen_) || poller_.wait(deadline);
  page_->loop_sleeps(false);
  if (called) {
    page_->clear_bell();
    seen_ = shown();
  }
  return called;
}

void TcpPlane::nudge() noexcept {
  if (page_ != nullptr) {
    page_->nudge();
  }
}

ControlConnection& TcpPlane::peer_of(int rank) {
  for (const auto& peer : peers_) {
    if (peer->rank() == rank) {
      return *peer;
    }
  }
  throw Error(Code::kInternal, "[control] no connection to rank " + std::to_string(rank));
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
}

/// Whether the loop thread's sleep ends when the connection takes more.
void TcpPlane::want_room(ControlConnection& peer, bool wanted) {
  if (peer.wants_room != wanted && !peer.left) {
    peer.wants_room = wanted;
    poller_.want_room(peer.fd(), wanted);
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
  return true;
}

void TcpPlane::take_notices(ControlConnection& peer) {
  while (peer.next_notice(notice_)) {
    if (notice_.type == FrameType::kAbort) {
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

void TcpPlane::has_share(bool has) noexcept {
  if (page_ != nullptr) {
    page_->has_share(has);
  }
}

void TcpPlane::watch_peers() {
  const auto look = peer_timeout_ / kLooksPerTimeout;
  const auto now = Clock::now();
  const bool absent = now - looked_ >= kAbsentLooks * look;
  looked_ = now;
  heartbeat_->watch();
  for (const auto& peer : peers_) {
    if (!peer->left) {
      peer->check_frame(now, absent, peer_timeout_);
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
  nudge();
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
