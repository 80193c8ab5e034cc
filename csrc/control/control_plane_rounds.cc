// The rounds of the control mesh.

#include <poll.h>

#include <algorithm>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/control/control_plane.h"

namespace aiacc {
namespace {

constexpr std::uint8_t kFoldIn = 254;
constexpr std::uint8_t kResult = 255;
/// Memory is looked at this often between two looks at the clock.
constexpr int kGlances = 16;

}  // namespace

void ControlPlane::all_reduce(Bytes& message, const Combine& combine, Runner runner) {
  throw_if_interrupted();
  runner_ = runner;
  const bool alone = is_one_host() && page_ != nullptr;
  if (page_ != nullptr) {
    page_->caller_runs(runner == Runner::kCaller);
    // A speaker for one of several hosts calls the others in.
    show_share(alone || !plan_.speaks() ? message : flags_alone(message));
  }
  if (!alone || !meet_mates(message, combine)) {
    meet_partners(message, combine);
  }
  if (page_ != nullptr) {
    page_->caller_runs(false);
  }
  ++round_;
  rounds_.fetch_add(1, std::memory_order_relaxed);
}

/// All ranks are on one host: each of them reads what all have shown. False if it has no room.
bool ControlPlane::meet_mates(Bytes& message, const Combine& combine) {
  const std::uint64_t round = rounds();
  await_mates([&] { return page_->shares(round) == page_->size() - 1; });
  for (int mate = 0; mate < page_->size(); ++mate) {
    if (page_->by_socket(mate, HostPage::kShare, round)) {
      return false;
    }
  }
  for (int mate = 0; mate < page_->size(); ++mate) {
    if (mate != page_->own()) {
      page_->read(mate, HostPage::kShare, round, received_);
      take(plan_.mates[static_cast<std::size_t>(mate)], received_, message, combine);
    }
  }
  return true;
}

/// Takes in the shares of those who fold in here, exchanges with other hosts, tells the result.
void ControlPlane::meet_partners(Bytes& message, const Combine& combine) {
  const std::uint64_t round = rounds();
  const int on_page = page_ == nullptr ? 0 : page_->size() - 1;  // of those who fold in, the first
  int index = 0;
  for (const Partner& fold : plan_.folds) {
    ControlConnection& peer = peer_of(fold.rank);
    bool shown = false;
    if (++index <= on_page) {
      const auto shows = [&] { return page_->shows(index, HostPage::kShare, round); };
      await_mates([&] { return shows() || peer.end(); });
      shown = shows() && page_->read(index, HostPage::kShare, round, received_);
    } else {
      call_in(peer, message);
    }
    take(fold, shown ? received_ : receive(peer, kFoldIn), message, combine);
  }
  for (std::size_t k = 0; k < plan_.stages.size(); ++k) {
    const auto stage = static_cast<std::uint8_t>(k);
    send(*peers_[k], FrameType::kRound, stage, message);
    take(plan_.stages[k], receive(*peers_[k], stage), message, combine);
  }
  if (plan_.proxy >= 0) {
    fold_into_proxy(message);
  }
  const bool fits =
      page_ != nullptr && plan_.speaks() && page_->show(HostPage::kResult, round, message);
  index = 0;
  for (const Partner& fold : plan_.folds) {
    if (++index > on_page || !fits) {
      send(peer_of(fold.rank), FrameType::kRound, kResult, message);
    }
  }
}

/// Gets the result of the round, from a rank that takes in this one's share or has it already.
void ControlPlane::fold_into_proxy(Bytes& message) {
  ControlConnection& proxy = peer_of(plan_.proxy);
  if (page_ == nullptr || plan_.speaks()) {
    send(proxy, FrameType::kRound, kFoldIn, message);
  } else {
    const std::uint64_t round = rounds();
    await_mates([&] { return page_->shows(0, HostPage::kResult, round); });
    if (page_->read(0, HostPage::kResult, round, message)) {
      return;
    }
  }
  message = receive(proxy, kResult);
}

/// Tells a rank that waits for others' rounds of this one.
void ControlPlane::call_in(ControlConnection& peer, const Bytes& message) {
  read_from(peer);
  if (!peer.has_rounds()) {
    send(peer, FrameType::kJoin, 0, flags_alone(message));
  }
}

const Bytes& ControlPlane::flags_alone(const Bytes& message) {
  const auto end = std::min(message.size(), sizeof(std::uint32_t));
  call_.assign(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(end));
  return call_;
}

/// Shows a share to the others of this host; if it has no room there, it goes to the speaker.
void ControlPlane::show_share(const Bytes& share) {
  const bool fits = page_->show(HostPage::kShare, rounds(), share);
  // Flags ask for more than tensors, also those who have none.
  call_all_ = !fits || flags_of(share) != 0;
  if (runner_ == Runner::kLoop || call_all_) {
    // A caller lets the others come by themselves before it sleeps.
    page_->call_in(rounds(), call_all_);
  }
  if (!fits && !plan_.speaks()) {
    send(peer_of(plan_.proxy), FrameType::kRound, kFoldIn, share);
  }
}

/// Looks for what a round waits for without sleeping, for as long as that is worth it: so often
/// between two looks at the clock.
template <class Ready>
bool ControlPlane::spin(int glances, Ready ready) {
  spin_.begin();
  do {
    for (int i = 0; i < glances; ++i) {
      if (ready()) {
        spin_.end();
        return true;
      }
      relax();
    }
  } while (spin_.again());
  return false;
}

/// Blocks until the others of this host have shown what is awaited.
template <class Ready>
void ControlPlane::await_mates(Ready ready) {
  if (spin(kGlances, ready)) {
    return;
  }
  if (runner_ == Runner::kCaller) {
    page_->call_in(rounds(), call_all_);
  }
  const auto start = Clock::now();
  while (true) {
    page_->sleeps(runner_, true);
    // What has come counts, also when its sender is gone by now.
    const bool there = ready();
    const bool over = !leaving_.ok() || interrupted_.load(std::memory_order_seq_cst);
    if (!there && !over) {
      const auto until = Clock::now() + peer_timeout_ / kLooksPerTimeout;
      if (runner_ == Runner::kCaller) {
        page_->sleep_as_caller(until);
      } else {
        sleep_until(until);
        page_->clear_bell();
      }
    }
    page_->sleeps(runner_, false);
    if (there || ready()) {
      return;
    }
    if (!leaving_.ok()) {
      throw Error(leaving_);
    }
    read_all();
    if (look_in_round(start)) {
      page_->call_in(rounds(), true);
    }
  }
}

/// The loop thread's: it is not at work meanwhile.
void ControlPlane::sleep_until(Clock::time_point until) {
  heartbeat_->work(false);
  poller_.wait(until);
  heartbeat_->work(true);
}

/// A share of the round: returns when the connection has taken it, or who was to have it has left.
/// Then that rank has finished the round, and what it gave to it is here or on its way; or it left
/// in the middle of it, which `receive` notices.
void ControlPlane::send(ControlConnection& peer,
                        FrameType type,
                        std::uint8_t stage,
                        const Bytes& payload) {
  if (peer.end()) {
    return;
  }
  // The payload is copied twice here; rounds are a few hundred bytes.
  outgoing_.type = type;
  outgoing_.stage = stage;
  outgoing_.round = round_;
  outgoing_.payload = payload;
  bytes_sent_.fetch_add(peer.put(outgoing_), std::memory_order_relaxed);
  flush(peer);
  for (const auto start = Clock::now(); !peer.flushed() && !peer.end();) {
    // Both ends may be sending more than the buffers hold, and others have notices: keep reading.
    wait_in_round(peer, start);
  }
}

/// Blocks until this round's frame of `peer` is there.
const Bytes& ControlPlane::receive(ControlConnection& peer, std::uint8_t stage) {
  // What has come counts, also when its sender is gone by now.
  const auto ready = [&] {
    return peer.take_round(round_, stage, received_) ||
           (read_from(peer) && peer.take_round(round_, stage, received_));
  };
  const auto start = Clock::now();
  if (!spin(1, ready)) {
    while (!ready()) {
      if (peer.end()) {
        throw Error(leaving_);
      }
      throw_if_interrupted();
      wait_in_round(peer, start);
    }
  }
  return received_;
}

/// Sleeps until something has come or may go, and sees to it; looks after the peers at times.
void ControlPlane::wait_in_round(ControlConnection& peer, Clock::time_point start) {
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

bool ControlPlane::look_in_round(Clock::time_point start) {
  const bool due = Clock::now() - std::max(start, looked_) >= peer_timeout_ / kLooksPerTimeout;
  if (due) {
    watch_peers();
  }
  return due;
}

/// What is wrong with the share of a peer is said with its rank.
void ControlPlane::take(const Partner& from,
                        const Bytes& share,
                        Bytes& message,
                        const Combine& combine) {
  try {
    combine(message, share, from.block);
  } catch (const Error& error) {
    throw Error(error.code(),
                "[control] rank " + std::to_string(from.rank) +
                    (error.code() == Code::kPeerLost
                         ? " cannot be trusted: "
                         : " and rank " + std::to_string(rank_) + " do not fit together: ") +
                    error.what());
  }
}

}  // namespace aiacc
