// The rounds of the control mesh.

#include <poll.h>

#include <algorithm>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/control/tcp/tcp_plane.h"

namespace aiacc {
namespace {

constexpr std::uint8_t kFoldIn = 254;
constexpr std::uint8_t kResult = 255;
/// Memory is looked at this often between two looks at the clock.
constexpr int kGlances = 16;

}  // namespace

void TcpPlane::all_reduce(Bytes& message, const Combine& combine, Runner runner) {
  throw_if_interrupted();
  runner_ = runner;
  if (page_ != nullptr && hosts_.size() == 1) {
    page_->caller_runs(runner == Runner::kCaller);
    meet_mates(message, combine);
    page_->caller_runs(false);
  } else if (rank_ == mates_.front()) {
    if (page_ != nullptr) {
      show(HostPage::kShare, flags_alone(message), -1);  // calls the others in
    }
    speak_for_host(message, combine);
  } else {
    follow_speaker(message);
  }
  ++round_;
  rounds_.fetch_add(1, std::memory_order_relaxed);
}

/// All ranks are on one host: each of them reads what all have shown, unless that has no room.
void TcpPlane::meet_mates(Bytes& message, const Combine& combine) {
  const std::uint64_t round = rounds();
  const auto mates = static_cast<int>(mates_.size());
  const bool speaks = rank_ == mates_.front();
  show(HostPage::kShare, message, speaks ? -1 : mates_.front());
  await_mates([&] { return page_->shares(round) == mates - 1; });
  bool large = false;
  for (int mate = 0; mate < mates; ++mate) {
    large = large || page_->by_socket(mate, HostPage::kShare, round);
  }
  if (large) {
    if (speaks) {
      speak_for_host(message, combine);
    } else {
      follow_speaker(message);
    }
    return;
  }
  for (int mate = 0; mate < mates; ++mate) {
    if (mate != page_->own()) {
      page_->read(mate, HostPage::kShare, round, received_);
      take(mates_[static_cast<std::size_t>(mate)],
           received_,
           mate_blocks_[static_cast<std::size_t>(mate)],
           message,
           combine);
    }
  }
}

/// Takes in the shares of those who fold in here, exchanges with other hosts, tells the result.
void TcpPlane::speak_for_host(Bytes& message, const Combine& combine) {
  const std::uint64_t round = rounds();
  for (std::size_t mate = 1; mate < mates_.size(); ++mate) {
    const auto index = static_cast<int>(mate);
    ControlConnection& member = peer_of(mates_[mate]);
    bool shown = false;
    if (page_ == nullptr) {
      call_in(member, message);
    } else {
      await_mates([&] { return page_->shows(index, HostPage::kShare, round) || member.left; });
      shown = page_->shows(index, HostPage::kShare, round) &&
              page_->read(index, HostPage::kShare, round, received_);
    }
    const Bytes& share = shown ? received_ : receive(member, kFoldIn);
    take(member.rank(), share, mate_blocks_[mate], message, combine);
  }
  if (plan_.extra >= 0) {
    ControlConnection& extra = peer_of(plan_.extra);
    call_in(extra, message);
    take(plan_.extra, receive(extra, kFoldIn), plan_.extra_block, message, combine);
  }
  for (std::size_t k = 0; k < plan_.stages.size(); ++k) {
    ControlConnection& partner = *peers_[k];
    send(partner, FrameType::kRound, static_cast<std::uint8_t>(k), message);
    take(partner.rank(),
         receive(partner, static_cast<std::uint8_t>(k)),
         plan_.blocks[k],
         message,
         combine);
  }
  if (plan_.proxy >= 0) {
    ControlConnection& proxy = peer_of(plan_.proxy);
    send(proxy, FrameType::kRound, kFoldIn, message);
    message = receive(proxy, kResult);
  }
  if (plan_.extra >= 0) {
    send(peer_of(plan_.extra), FrameType::kRound, kResult, message);
  }
  if (page_ != nullptr) {
    show(HostPage::kResult, message, -1);
  }
  for (const int rank : plan_.members) {
    if (page_ == nullptr || page_->by_socket(page_->own(), HostPage::kResult, round)) {
      send(peer_of(rank), FrameType::kRound, kResult, message);
    }
  }
}

/// Gives this rank's share to the one that speaks for the host, and gets the result.
void TcpPlane::follow_speaker(Bytes& message) {
  const std::uint64_t round = rounds();
  ControlConnection& speaker = peer_of(mates_.front());
  if (page_ == nullptr) {
    send(speaker, FrameType::kRound, kFoldIn, message);
    message = receive(speaker, kResult);
    return;
  }
  if (hosts_.size() > 1) {
    show(HostPage::kShare, message, speaker.rank());
  }
  await_mates([&] { return page_->shows(0, HostPage::kResult, round); });
  if (!page_->read(0, HostPage::kResult, round, message)) {
    message = receive(speaker, kResult);
  }
}

const Bytes& TcpPlane::flags_alone(const Bytes& message) {
  const auto end = std::min(message.size(), sizeof(std::uint32_t));
  call_.assign(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(end));
  return call_;
}

/// Tells a rank that waits for others' rounds of this one.
void TcpPlane::call_in(ControlConnection& peer, const Bytes& message) {
  read_from(peer);
  if (!peer.has_rounds()) {
    send(peer, FrameType::kJoin, 0, flags_alone(message));
  }
}

/// Shows a message to the others of this host; what has no room goes to that rank by socket.
void TcpPlane::show(HostPage::Board board, const Bytes& message, int large_to) {
  const bool fits = page_->show(board, rounds(), message);
  if (board == HostPage::kResult) {
    page_->ring();
  } else {
    page_->release(rounds());
    // Flags ask for more than tensors, also those who have none.
    call_all_ = !fits || flags_of(message) != 0;
    if (runner_ == Runner::kLoop || call_all_) {
      // A caller lets the others come by themselves before it sleeps.
      page_->call_in(rounds(), call_all_);
    }
  }
  if (!fits && large_to >= 0) {
    send(peer_of(large_to), FrameType::kRound, kFoldIn, message);
  }
}

/// Blocks until the others of this host have shown what is awaited; spins briefly, then sleeps.
template <class Ready>
void TcpPlane::await_mates(Ready ready) {
  spin_.begin();
  bool there = false;
  do {
    for (int i = 0; i < kGlances && !there; ++i) {
      there = ready();
      relax();
    }
  } while (!there && spin_.again());
  if (there) {
    spin_.end();
    return;
  }
  const auto start = Clock::now();
  if (runner_ == Runner::kCaller) {
    page_->call_in(rounds(), call_all_);
  }
  while (true) {
    std::uint32_t rung = 0;
    if (runner_ == Runner::kCaller) {
      rung = page_->caller_sleeps();
    } else {
      page_->loop_sleeps(true);
    }
    // What has come counts, also when its sender is gone by now.
    there = ready();
    const bool over = !there && (!leaving_.ok() || interrupted_.load(std::memory_order_acquire));
    if (!there && !over) {
      sleep_beside_mates(rung);
    }
    if (runner_ == Runner::kCaller) {
      page_->caller_wakes();
    } else {
      page_->loop_sleeps(false);
    }
    if (there || ready()) {
      return;
    }
    if (over && !leaving_.ok()) {
      throw Error(leaving_);
    }
    read_all();
    if (look_in_round(start)) {
      page_->call_in(rounds(), true);
    }
  }
}

void TcpPlane::sleep_beside_mates(std::uint32_t rung) {
  const auto until = Clock::now() + peer_timeout_ / kLooksPerTimeout;
  if (runner_ == Runner::kCaller) {
    page_->sleep(rung, until);
  } else {
    sleep_until(until);
    page_->clear_bell();
  }
}

/// The loop thread's: it is not at work meanwhile.
void TcpPlane::sleep_until(Clock::time_point until) {
  heartbeat_->work(false);
  poller_.wait(until);
  heartbeat_->work(true);
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
    // Both ends may be sending more than the buffers hold, and others have notices: keep reading.
    wait_in_round(peer, start);
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
    wait_in_round(peer, start);
  }
}

/// Sleeps until something has come or may go, and sees to it; looks after the peers at times.
void TcpPlane::wait_in_round(ControlConnection& peer, Clock::time_point start) {
  const auto until = Clock::now() + peer_timeout_ / kLooksPerTimeout;
  if (runner_ == Runner::kCaller) {
    // Not on what the loop thread sleeps on, whose wake-ups are not for this one.
    pollfd entry{peer.fd(), static_cast<short>(POLLIN | (peer.flushed() ? 0 : POLLOUT)), 0};
    poll_until(&entry, 1, until);
  } else {
    sleep_until(until);
  }
  read_all();
  look_in_round(start);
}

bool TcpPlane::look_in_round(Clock::time_point start) {
  const bool due = Clock::now() - std::max(start, looked_) >= peer_timeout_ / kLooksPerTimeout;
  if (due) {
    watch_peers();
  }
  return due;
}

/// What is wrong with the share of a peer is said with its rank.
void TcpPlane::take(
    int rank, const Bytes& share, const RankBlock& from, Bytes& message, const Combine& combine) {
  try {
    combine(message, share, from);
  } catch (const Error& error) {
    throw Error(error.code(),
                "[control] rank " + std::to_string(rank) +
                    (error.code() == Code::kPeerLost
                         ? " cannot be trusted: "
                         : " and rank " + std::to_string(rank_) + " do not fit together: ") +
                    error.what());
  }
}

}  // namespace aiacc
