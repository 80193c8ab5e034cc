#include "csrc/control/control_plane.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "csrc/base/descriptors.h"
#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/base/tcp_info.h"

namespace aiacc {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
/// For telling all peers of an abort. Sockets have room for it, unless a peer does not read, or is
/// in the middle of a long frame: so long after the last bytes that a peer took.
constexpr std::chrono::milliseconds kAbortPatience{1000};
/// For the others' ends of the connections.
constexpr std::chrono::milliseconds kLeavePatience{500};

}  // namespace

ControlPlane::ControlPlane(Connector* connector, const ControlPlaneOptions& options)
    : rank_(connector == nullptr ? 0 : connector->rank()),
      size_(connector == nullptr ? 1 : connector->size()),
      plan_(DoublingPlan::of(rank_, ranks_by_host(options.host_of, size_))),
      peer_timeout_(duration_of(options.peer_timeout_s)),
      spin_(duration_of(options.spin_us * 1e-6)),
      read_buffer_(kReadBytes) {
  const std::vector<int> partners = plan_.partners();
  std::vector<ChannelSpec> specs;
  for (const ChannelKind kind : {ChannelKind::kControl, ChannelKind::kHeartbeat}) {
    for (const int partner : partners) {
      specs.push_back({partner, kind, 0, partner < rank_});
    }
  }
  std::vector<Socket> sockets;
  if (!specs.empty()) {
    sockets = connector->establish(specs);
  }
  std::vector<Heartbeat::Link> links;
  for (std::size_t i = 0; i < partners.size(); ++i) {
    peers_.push_back(std::make_unique<ControlConnection>(partners[i], std::move(sockets[i])));
    links.push_back({partners[i], std::move(sockets[partners.size() + i])});
  }
  full_.reserve(peers_.size());
  for (const auto& peer : peers_) {
    poller_.add(peer->fd());
  }
  page_ = meet_in_memory(connector, options.connect_timeout_s);
  if (page_ != nullptr) {
    poller_.add(page_->bell());
  }
  try {
    heartbeat_ = std::make_unique<Heartbeat>(std::move(links),
                                             options.peer_timeout_s,
                                             options.stall_fail_s,
                                             [this](const Status& status) { interrupt(status); });
  } catch (const Error& error) {
    abort(reported_by(rank_, error.status()));
    leave();
    throw;
  }
}

/// Null where the host has no other rank, or one of its ranks cannot share memory.
std::unique_ptr<HostPage> ControlPlane::meet_in_memory(Connector* connector,
                                                       double timeout_s) const {
  if (plan_.mates.size() == 1) {
    return nullptr;
  }
  std::vector<int> ranks;
  ranks.reserve(plan_.mates.size());
  for (const Partner& mate : plan_.mates) {
    ranks.push_back(mate.rank);
  }
  try {
    return std::make_unique<HostPage>(*connector, ranks, timeout_s);
  } catch (const Error& error) {
    if (error.code() != Code::kEngine) {
      throw;
    }
    if (plan_.speaks()) {
      AIACC_LOG(kInfo) << "[control] the ranks of this host agree over sockets: " << error.what();
    }
    return nullptr;
  }
}

ControlPlane::~ControlPlane() {
  heartbeat_.reset();
  leave();
}

/// A live peer's loop thread answers an abort at once.
void ControlPlane::leave() noexcept {
  std::vector<int> sockets;
  for (const auto& peer : peers_) {
    ::shutdown(peer->fd(), SHUT_WR);
    sockets.push_back(peer->fd());
  }
  discard_until_closed(sockets, Clock::now() + kLeavePatience);
}

void ControlPlane::service() {
  read_all();
  // Who left had finished all rounds that it was in. What these decided holds on every rank, so
  // a round that has reached this one comes before the end.
  if (!leaving_.ok() && !round_pending()) {
    throw Error(leaving_);
  }
}

void ControlPlane::read_all() {
  throw_if_interrupted();
  for (const auto& peer : peers_) {
    flush(*peer);
    read_from(*peer);
  }
}

double ControlPlane::round_trip_s() const {
  double farthest = 0;
  for (const auto& peer : peers_) {
    farthest = std::max(farthest, tcp_round_trip_s(peer->fd()));
  }
  return farthest;
}

bool ControlPlane::round_pending() const {
  return (page_ != nullptr && page_->shares(rounds()) > 0) ||
         std::any_of(peers_.begin(), peers_.end(), [this](const auto& peer) {
           return peer->has_round(round_);
         });
}

std::uint32_t ControlPlane::pending_flags() const {
  std::uint32_t flags = 0;
  for (const auto& peer : peers_) {
    flags |= peer->round_flags(round_);
  }
  return page_ == nullptr ? flags : flags | page_->flags(rounds());
}

/// What a page shows stays there: what was seen of it before ends no sleep.
bool ControlPlane::wait(Clock::time_point deadline) {
  if (page_ == nullptr) {
    return poller_.wait(deadline);
  }
  page_->sleeps(Runner::kLoop, true);
  const auto shown = [this] { return std::pair(rounds(), page_->shares(rounds())); };
  const auto now = shown();
  const bool called = (now.second > 0 && now != seen_) || poller_.wait(deadline);
  page_->sleeps(Runner::kLoop, false);
  if (called) {
    page_->clear_bell();
    seen_ = shown();
  }
  return called;
}

ControlConnection& ControlPlane::peer_of(int rank) {
  for (const auto& peer : peers_) {
    if (peer->rank() == rank) {
      return *peer;
    }
  }
  throw Error(Code::kInternal, "[control] no connection to rank " + std::to_string(rank));
}

/// Sends what the connection takes now; the loop thread's sleep ends when it takes more.
void ControlPlane::flush(ControlConnection& peer) {
  if (peer.flushed()) {
    return;
  }
  try {
    if (!peer.end()) {
      peer.send_some();
    }
  } catch (const Error&) {
    // What it had said before it went is the cause.
    while (read_from(peer)) {
    }
    if (!peer.end()) {
      throw;
    }
  }
  if (peer.end()) {
    peer.clear_outbox();
  }
  if (peer.wants_room == peer.flushed()) {
    peer.wants_room = !peer.flushed();
    poller_.want_room(peer.fd(), peer.wants_room);
  }
}

/// Takes in what has come, not all of it if that is much; whether it was anything.
bool ControlPlane::read_from(ControlConnection& peer) {
  const bool some = peer.receive_some(read_buffer_);
  if (some && peer.end()) {
    if (peer.end()->code() != Code::kShutdown) {
      throw Error(*peer.end());
    }
    leaving_ = leaving_.ok() ? *peer.end() : leaving_;
    poller_.remove(peer.fd());  // it stays readable
  }
  return some;
}

void ControlPlane::watch_peers() {
  const auto look = peer_timeout_ / kLooksPerTimeout;
  const auto now = Clock::now();
  const bool absent = now - looked_ >= kAbsentLooks * look;
  looked_ = now;
  heartbeat_->watch();
  for (const auto& peer : peers_) {
    peer->check_frame(now, absent, peer_timeout_);
  }
}

void ControlPlane::interrupt(const Status& status) noexcept {
  {
    const std::lock_guard lock(interrupt_mutex_);
    if (interrupted_.load(std::memory_order_relaxed)) {
      return;
    }
    interrupt_status_ = status;
    // Sequentially consistent with a caller that goes to sleep: it sees this, or `nudge` sees it.
    interrupted_.store(true, std::memory_order_seq_cst);
  }
  poller_.wake();
  nudge();
}

void ControlPlane::throw_if_interrupted() const {
  if (interrupted_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(interrupt_mutex_);
    throw Error(interrupt_status_);
  }
}

void ControlPlane::abort(const Status& status) noexcept {
  if (std::exchange(aborted_, true)) {
    return;
  }
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
  do {
    full_.clear();
    for (const auto& peer : peers_) {
      const std::size_t before = peer->unsent();
      try {
        if (!peer->send_some()) {
          full_.push_back({peer->fd(), POLLOUT, 0});
        }
      } catch (const Error&) {
        // That peer is the lost one.
      }
      moved = peer->unsent() < before ? Clock::now() : moved;
    }
  } while (!full_.empty() && Clock::now() - moved < kAbortPatience &&
           Clock::now() - start < peer_timeout_ &&
           poll(full_.data(), full_.size(), kAbortPatience.count()) > 0);
  for (const auto& peer : peers_) {
    ::shutdown(peer->fd(), SHUT_WR);
  }
}

}  // namespace aiacc
