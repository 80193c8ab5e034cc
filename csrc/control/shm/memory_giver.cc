// The part of the lowest rank: it makes the memory, gives it to the others, and says to all what
// has become of it.

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <random>
#include <string>
#include <utility>

#include "csrc/control/shm/memory_sharing.h"
#include "csrc/control/shm/unix_socket.h"

namespace aiacc {
namespace {

/// Of processes that have connected and not said yet who they are; the first then give way.
constexpr std::size_t kMostCallers = 64;

class Giver {
 public:
  Giver(const MemorySharing& what, std::vector<MemoryLink> links)
      : parts_(what),
        patience_(what.timeout_s, what.interrupt),
        links_(std::move(links)),
        reported_(links_.size(), false) {}

  HostMemory run() {
    try {
      return make();
    } catch (...) {
      const Status outcome = current_exception_status();
      tell(outcome);
      throw Error(outcome);
    }
  }

 private:
  HostMemory make();
  void invite(const std::string& name);
  void serve(UnixListener& door, const Socket& descriptor);
  void greet(const Socket& descriptor);
  bool is_invited(const MemoryMark& mark) const;
  void hear(std::size_t link);
  void tell(const Status& outcome) noexcept;
  [[noreturn]] void give_up() const;

  MemoryParts parts_;
  const Patience patience_;
  std::vector<MemoryLink> links_;
  std::vector<bool> reported_;  ///< by link
  std::deque<Socket> callers_;  ///< who has connected and not said yet who it is
};

HostMemory Giver::make() {
  std::uint8_t nonce[sizeof(MemoryMark::nonce)];
  std::random_device random;
  std::generate(
      std::begin(nonce), std::end(nonce), [&] { return static_cast<std::uint8_t>(random()); });
  parts_.set_nonce(nonce);
  parts_.require_room(0);
  auto [memory, descriptor] = SharedMemory::create(parts_.total_bytes());
  parts_.take(memory, descriptor, 0);
  if (!links_.empty()) {
    UnixListener door;
    invite(door.name());
    serve(door, descriptor);
  }
  for (std::size_t index = 1; index < parts_.size(); ++index) {
    parts_.check(memory, index);
  }
  for (MemoryLink& link : links_) {
    link.send(Status(), patience_.until());
  }
  return parts_.divide(std::move(memory));
}

void Giver::invite(const std::string& name) {
  MemoryInvitation invitation{};
  invitation.bytes = parts_.total_bytes();
  std::memcpy(invitation.nonce, parts_.mark_of(0).nonce, sizeof invitation.nonce);
  AIACC_CHECK(name.size() < sizeof invitation.name);
  std::copy(name.begin(), name.end(), invitation.name);
  const std::string bytes(reinterpret_cast<const char*>(&invitation), sizeof invitation);
  for (MemoryLink& link : links_) {
    link.send(Status(Code::kOk, bytes), patience_.until());
  }
}

/// Gives the memory to whoever is invited, until all have reported.
void Giver::serve(UnixListener& door, const Socket& descriptor) {
  while (std::find(reported_.begin(), reported_.end(), false) != reported_.end()) {
    std::vector<pollfd> entries{{door.fd(), POLLIN, 0}};
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (!reported_[i]) {
        entries.push_back(links_[i].readable());
      }
    }
    for (const Socket& caller : callers_) {
      entries.push_back({caller.fd(), POLLIN, 0});
    }
    if (!patience_.sleep(std::move(entries))) {
      give_up();
    }
    greet(descriptor);
    for (Socket caller = door.accept(); caller.valid(); caller = door.accept()) {
      callers_.push_back(std::move(caller));
      greet(descriptor);
    }
    for (std::size_t i = 0; i < links_.size(); ++i) {
      hear(i);
    }
  }
  callers_.clear();
}

/// Hears who has connected, and gives the memory to those who know the nonce.
void Giver::greet(const Socket& descriptor) {
  const auto is_done = [&](const Socket& caller) {
    MemoryMark mark{};
    const UnixMessage message = receive_message(caller, &mark, sizeof mark);
    if (message.kind == UnixMessage::kMessage && message.bytes == sizeof mark && is_invited(mark)) {
      send_message(caller, &mark, sizeof mark, descriptor.fd());
    }
    return message.kind != UnixMessage::kNothing;
  };
  callers_.erase(std::remove_if(callers_.begin(), callers_.end(), is_done), callers_.end());
  if (callers_.size() > kMostCallers) {
    callers_.pop_front();
  }
}

bool Giver::is_invited(const MemoryMark& mark) const {
  for (std::size_t index = 1; index < parts_.size(); ++index) {
    const MemoryMark invited = parts_.mark_of(index);
    if (std::memcmp(&mark, &invited, sizeof mark) == 0) {
      return true;
    }
  }
  return false;
}

void Giver::hear(std::size_t link) {
  if (reported_[link]) {
    return;
  }
  const std::optional<Status> report = links_[link].receive();
  if (!report) {
    return;
  }
  reported_[link] = true;
  if (!report->ok()) {
    throw Error(report->code(),
                "[shm] " + rank_name(links_[link].rank()) +
                    " has no part in the memory of its host: " + report->message() +
                    "; AIACC_ENGINE=tcp does without");
  }
}

void Giver::give_up() const {
  std::string missing;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (!reported_[i]) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(links_[i].rank());
    }
  }
  throw Error(Code::kTimeout,
              "[shm] " + rank_name(parts_.what().ranks[0]) + " waited " +
                  std::to_string(patience_.seconds()) + " s for rank(s) " + missing +
                  " to map the memory of their host; are they alive? (AIACC_CONNECT_TIMEOUT_S)");
}

/// Makes every rank throw the same. A connection that is closed with something unread in it might
/// lose what was sent, so what the others have on their way is read first.
void Giver::tell(const Status& outcome) noexcept {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    try {
      links_[i].send(outcome, patience_.until());
    } catch (const Error&) {
      reported_[i] = true;  // it has gone
    }
  }
  try {
    for (std::size_t i = 0; i < links_.size() && outcome.code() != Code::kShutdown; ++i) {
      while (!reported_[i] && !links_[i].receive() && patience_.sleep({links_[i].readable()})) {
      }
    }
  } catch (const Error&) {
    // It has heard it and gone; or nobody waits any more.
  }
}

}  // namespace

HostMemory give_memory(const MemorySharing& sharing, std::vector<MemoryLink> links) {
  return Giver(sharing, std::move(links)).run();
}

}  // namespace aiacc
