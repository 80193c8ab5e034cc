#include "csrc/control/tcp/tcp_plane.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr std::uint8_t kFoldIn = 254;
constexpr std::uint8_t kResult = 255;
constexpr std::size_t kReadBytes = 64 << 10;
/// Frames of rounds that a rank can have sent before this one has taken any: a few of this round
/// and of the next.
constexpr std::size_t kMostRounds = 16;

/// For telling all peers of an abort. Sockets have room for it, unless a peer does not read, or is
/// in the middle of a long frame: so long after the last bytes that a peer took.
constexpr std::chrono::milliseconds kAbortPatience{1000};

/// In looks. A peer is asked after so much silence, and lost so long after that; the rest of the
/// time limit is for looks that come late.
constexpr int kSilentLooks = 2;
constexpr int kPatientLooks = 26;
/// Who has not looked for so long cannot tell who was silent meanwhile.
constexpr int kAbsentLooks = 8;

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw system_error(Code::kInternal, "[control] epoll_ctl", errno);
  }
}

/// Sets a one-shot timer unless it is running already.
void arm(int timer, std::atomic<bool>& armed, long long nanoseconds) noexcept {
  if (armed.exchange(true)) {
    return;
  }
  itimerspec when{};
  when.it_value.tv_sec = nanoseconds / 1'000'000'000;
  when.it_value.tv_nsec = nanoseconds % 1'000'000'000;
  timerfd_settime(timer, 0, &when, nullptr);
}

/// Makes an expired timer unreadable again.
void expire(int timer, std::atomic<bool>& armed) noexcept {
  std::uint64_t expirations = 0;
  if (read(timer, &expirations, sizeof expirations) > 0) {
    // An exchange, to see what was done before an `arm` that found the timer running.
    armed.exchange(false);
  }
}

std::string seconds_text(std::chrono::nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", std::chrono::duration<double>(duration).count());
  return text;
}

}  // namespace

DoublingPlan DoublingPlan::of(int rank, int size) {
  int power = 1;
  while (power * 2 <= size) {
    power *= 2;
  }
  DoublingPlan plan;
  if (rank >= power) {
    plan.proxy = rank - power;
    return plan;
  }
  for (int bit = 1; bit < power; bit *= 2) {
    const int partner = rank ^ bit;
    const int first = partner & ~(bit - 1);
    const int last = first + bit - 1;
    plan.stages.push_back(partner);
    plan.blocks.push_back({first, last, first + power, std::min(last + power, size - 1)});
  }
  plan.extra = rank + power < size ? rank + power : -1;
  return plan;
}

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
    peers_.push_back(std::make_unique<Peer>(partners[i], std::move(sockets[i])));
  }
  full_.reserve(peers_.size());
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  grace_timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  inner_ = epoll_create1(EPOLL_CLOEXEC);
  outer_ = epoll_create1(EPOLL_CLOEXEC);
  if (timer_ < 0 || grace_timer_ < 0 || inner_ < 0 || outer_ < 0) {
    const int error = errno;
    close_descriptors();
    throw system_error(Code::kEngine, "[control] epoll or timerfd", error);
  }
  for (const auto& peer : peers_) {
    watch(inner_, peer->socket.fd());
  }
  watch(inner_, event_.fd());
  watch(inner_, timer_);
  watch(outer_, inner_);
  watch(outer_, grace_timer_);
  watch(outer_, event_.fd());
}

TcpPlane::~TcpPlane() {
  // Closing with unread bytes resets the connection and may destroy what the peer has not read
  // yet: read until it closes too. A live peer's background thread answers an abort at once.
  const auto deadline = Clock::now() + std::chrono::milliseconds(500);
  for (const auto& peer : peers_) {
    ::shutdown(peer->socket.fd(), SHUT_WR);
  }
  for (const auto& peer : peers_) {
    try {
      while (Clock::now() < deadline) {
        if (peer->socket.recv_some(read_buffer_.data(), read_buffer_.size(), peer->name) == 0) {
          pollfd entry{peer->socket.fd(), POLLIN, 0};
          poll(&entry, 1, 50);
        }
      }
    } catch (const Error&) {
      // Closed on the other side as well: done.
    }
  }
  close_descriptors();
}

void TcpPlane::close_descriptors() noexcept {
  for (const int fd : {timer_, grace_timer_, inner_, outer_}) {
    if (fd >= 0) {
      close(fd);
    }
  }
}

void TcpPlane::all_reduce(Bytes& message, const Combine& combine) {
  throw_if_interrupted();
  if (plan_.proxy >= 0) {
    Peer& proxy = peer_of(plan_.proxy);
    send(proxy, FrameType::kRound, kFoldIn, message);
    message = receive(proxy, kResult);
  } else {
    if (plan_.extra >= 0) {
      Peer& extra = peer_of(plan_.extra);
      read_from(extra);
      if (extra.rounds.empty()) {
        send(extra, FrameType::kJoin, 0, {});
      }
      take_share(extra, kFoldIn, {extra.rank, extra.rank}, message, combine);
    }
    for (std::size_t k = 0; k < plan_.stages.size(); ++k) {
      Peer& partner = *peers_[k];
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
void TcpPlane::take_share(
    Peer& peer, std::uint8_t stage, const RankBlock& from, Bytes& message, const Combine& combine) {
  const Bytes& share = receive(peer, stage);
  try {
    combine(message, share, from);
  } catch (const Error& error) {
    if (error.code() != Code::kPeerLost) {
      throw;
    }
    throw Error(Code::kPeerLost, "[control] " + peer.name + " cannot be trusted: " + error.what());
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

bool TcpPlane::round_pending() const {
  return std::any_of(peers_.begin(), peers_.end(), [this](const auto& peer) {
    return !peer->rounds.empty() && peer->rounds.front().round == round_;
  });
}

TcpPlane::Peer& TcpPlane::peer_of(int rank) {
  for (const auto& peer : peers_) {
    if (peer->rank == rank) {
      return *peer;
    }
  }
  throw Error(Code::kInternal, "[control] no connection to rank " + std::to_string(rank));
}

/// A share of the round: returns when the connection has taken it, or who was to have it has left.
/// Then that rank has finished the round, and what it gave to it is here or on its way; or it left
/// in the middle of it, which `receive` notices.
void TcpPlane::send(Peer& peer, FrameType type, std::uint8_t stage, const Bytes& payload) {
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
void TcpPlane::post(Peer& peer, FrameType type, std::uint8_t stage, const Bytes& payload) {
  // The payload is copied twice here; rounds are a few hundred bytes.
  outgoing_.type = type;
  outgoing_.stage = stage;
  outgoing_.round = round_;
  outgoing_.payload = payload;
  const std::size_t before = peer.outbox.size();
  encode_frame(outgoing_, peer.outbox);
  bytes_sent_.fetch_add(peer.outbox.size() - before, std::memory_order_relaxed);
  flush(peer);
}

void TcpPlane::flush(Peer& peer) {
  if (peer.flushed()) {
    return;
  }
  if (!peer.left) {
    try {
      const std::size_t sent = peer.socket.send_some(
          peer.outbox.data() + peer.out, peer.outbox.size() - peer.out, peer.name);
      peer.out += sent;
      peer.taken += sent;
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
    peer.outbox.clear();
    peer.out = 0;
  }
  want_room(peer, !peer.flushed());
  answer_pings(peer);
}

/// Whether the progress thread's sleep ends when the connection takes more.
void TcpPlane::want_room(Peer& peer, bool wanted) {
  if (peer.wants_room != wanted && !peer.left) {
    peer.wants_room = wanted;
    epoll_event event{};
    event.events = EPOLLIN | (wanted ? EPOLLOUT : 0U);
    event.data.fd = peer.socket.fd();
    epoll_ctl(inner_, EPOLL_CTL_MOD, peer.socket.fd(), &event);
  }
}

void TcpPlane::answer_pings(Peer& peer) {
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
const Bytes& TcpPlane::receive(Peer& peer, std::uint8_t stage) {
  const auto start = Clock::now();
  spin_.begin();
  while (true) {
    // What has come counts, also when its sender is gone by now.
    bool there = take_round(peer, stage);
    if (!there) {
      read_from(peer);
      there = take_round(peer, stage);
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

/// Moves the payload to `received_`.
bool TcpPlane::take_round(Peer& peer, std::uint8_t stage) {
  while (!peer.rounds.empty() && peer.rounds.front().type == FrameType::kJoin &&
         peer.rounds.front().round <= round_) {
    peer.rounds.pop();
  }
  if (peer.rounds.empty()) {
    return false;
  }
  Frame& frame = peer.rounds.front();
  if (frame.type != FrameType::kRound || frame.round != round_ || frame.stage != stage) {
    throw Error(Code::kInternal,
                "[control] expected round " + std::to_string(round_) + " stage " +
                    std::to_string(stage) + " from " + peer.name + ", got round " +
                    std::to_string(frame.round) + " stage " + std::to_string(frame.stage));
  }
  received_.swap(frame.payload);
  peer.rounds.pop();
  return true;
}

/// Takes in what has come, not all of it if that is much; whether it was anything.
bool TcpPlane::read_from(Peer& peer) {
  if (peer.left) {
    return false;
  }
  const std::size_t got =
      peer.socket.recv_some(read_buffer_.data(), read_buffer_.size(), peer.name);
  if (got == 0) {
    return false;
  }
  peer.heard = Clock::now();
  peer.asked = {};
  try {
    peer.decoder.feed(read_buffer_.data(), got, peer.arrived);
  } catch (const Error&) {
    sort_arrived(peer);  // a reason for its end that came before the garbage is the cause
    throw;
  }
  sort_arrived(peer);
  // After all that has come: who asked may have given the reason for its end since.
  answer_pings(peer);
  return true;
}

void TcpPlane::sort_arrived(Peer& peer) {
  while (!peer.arrived.empty()) {
    Frame& frame = peer.arrived.front();
    if (frame.type == FrameType::kRound || frame.type == FrameType::kJoin) {
      if (peer.rounds.size() == kMostRounds) {
        throw Error(Code::kPeerLost,
                    "[control] " + peer.name + " sent " + std::to_string(kMostRounds + 1) +
                        " rounds ahead (expected its share of this one and the next); the "
                        "connection cannot be trusted");
      }
      std::swap(peer.rounds.push(), frame);
      peer.arrived.pop();
    } else {
      const Frame taken = std::move(frame);
      peer.arrived.pop();
      handle(peer, taken);
    }
  }
}

void TcpPlane::handle(Peer& peer, const Frame& frame) {
  switch (frame.type) {
    case FrameType::kRound:
    case FrameType::kJoin:
      return;  // queued already
    case FrameType::kPing:
      peer.pong_due = true;
      return;
    case FrameType::kPong:
      return;
    case FrameType::kAbort: {
      const Status status = decode_status(frame.payload, peer.name);
      if (status.code() != Code::kShutdown) {
        throw Error(status);
      }
      if (leaving_.ok()) {
        leaving_ = status;
      }
      peer.left = true;
      epoll_ctl(inner_, EPOLL_CTL_DEL, peer.socket.fd(), nullptr);  // it stays readable
      return;
    }
  }
}

void TcpPlane::check_peers() {
  const auto look = peer_timeout_ / kLooksPerTimeout;
  const auto now = Clock::now();
  const bool absent = now - looked_ >= kAbsentLooks * look;
  looked_ = now;
  for (const auto& peer : peers_) {
    if (peer->left) {
      continue;
    }
    if (absent) {
      peer->asked = {};
    }
    if (peer->asked != Clock::time_point{}) {
      if (moves_bytes(*peer)) {
        peer->asked = now;
      }
      if (now - peer->asked >= kPatientLooks * look) {
        throw Error(Code::kPeerLost,
                    "[control] " + peer->name + " has not answered within " +
                        seconds_text(peer_timeout_) +
                        " s (AIACC_PEER_TIMEOUT_S): it is frozen or its link is down");
      }
    } else if (now - peer->heard >= kSilentLooks * look) {
      peer->asked = now;
      post(*peer, FrameType::kPing, 0, {});  // Behind what is on its way: see moves_bytes.
    }
  }
}

/// Whether bytes that are before the question have arrived there since the last look: the answer
/// cannot come sooner than they do.
bool TcpPlane::moves_bytes(Peer& peer) {
  const std::uint64_t on_the_way = peer.socket.unacknowledged();
  const std::uint64_t there = peer.taken - std::min(peer.taken, on_the_way);
  const bool moved = there != peer.arrived_there;
  peer.arrived_there = there;
  return moved && (on_the_way > 0 || !peer.flushed());
}

void TcpPlane::sleep_on(int epoll, Clock::time_point deadline) {
  int timeout_ms = -1;
  if (deadline != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    timeout_ms = static_cast<int>(std::clamp<long long>(left, 0, 3'600'000));
  }
  epoll_event events[4];
  epoll_wait(epoll, events, 4, timeout_ms);
}

void TcpPlane::wait(Clock::time_point deadline) {
  sleep_on(outer_, deadline);
  expire(grace_timer_, grace_armed_);
}

void TcpPlane::wait_claimed(Clock::time_point deadline) {
  sleep_on(inner_, deadline);
  take_wakes();
}

void TcpPlane::take_wakes() noexcept {
  event_.clear();
  expire(timer_, timer_armed_);
}

void TcpPlane::wake_at(Clock::time_point deadline) noexcept {
  const auto left = std::chrono::nanoseconds(deadline - Clock::now()).count();
  arm(timer_, timer_armed_, std::max<long long>(left, 1));
}

void TcpPlane::watch_inner(bool enabled) noexcept {
  epoll_event event{};
  event.events = enabled ? EPOLLIN : 0U;
  event.data.fd = inner_;
  epoll_ctl(outer_, EPOLL_CTL_MOD, inner_, &event);
}

void TcpPlane::claim() {
  if (!claimed_) {
    claimed_ = true;
    watch_inner(false);
  }
}

void TcpPlane::unclaim() noexcept {
  if (claimed_) {
    claimed_ = false;
    watch_inner(true);
  }
}

void TcpPlane::unclaim_after(std::chrono::microseconds grace) noexcept {
  arm(grace_timer_, grace_armed_, std::chrono::nanoseconds(grace).count());
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
  event_.set();
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
      encode_frame({FrameType::kAbort, 0, round_, encode_status(status)}, peer->outbox);
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
      const std::size_t before = peer->out;
      if (!say_farewell(*peer) && patient) {
        full_.push_back({peer->socket.fd(), POLLOUT, 0});
      } else {
        ::shutdown(peer->socket.fd(), SHUT_WR);
      }
      moved = peer->out > before ? Clock::now() : moved;
    }
    if (full_.empty()) {
      return;
    }
    poll(full_.data(), full_.size(), static_cast<int>(kAbortPatience.count()));
  }
}

/// Whether nothing is left to be sent, or nobody to take it.
bool TcpPlane::say_farewell(Peer& peer) noexcept {
  try {
    peer.out += peer.flushed()
                    ? 0
                    : peer.socket.send_some(
                          peer.outbox.data() + peer.out, peer.outbox.size() - peer.out, peer.name);
    return peer.flushed();
  } catch (const Error&) {
    return true;  // that peer is the lost one
  }
}

}  // namespace aiacc
