// The part of all ranks but the lowest: they fetch the memory there, and hear whether all have it.

#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "csrc/control/shm/memory_sharing.h"
#include "csrc/control/shm/unix_socket.h"

namespace aiacc {
namespace {

/// How soon a connection that found no room is opened again.
constexpr std::chrono::milliseconds kReopenAfter{20};
constexpr std::chrono::milliseconds kLong{60'000};
/// Waits longer than the lowest rank by this factor: that rank names the one that is late. Its time
/// begins when all have connected, which may take once as long.
constexpr double kPatience = 1.5;

class Receiver {
 public:
  Receiver(const MemorySharing& what, std::size_t index, MemoryLink link)
      : parts_(what),
        patience_(std::in_place, what.timeout_s * (1 + kPatience), what.interrupt),
        index_(index),
        link_(std::move(link)) {}

  HostMemory run();

 private:
  SharedMemory take();
  MemoryInvitation await_invitation();
  Socket fetch(const std::string& name);
  Status await_message(const char* what);

  MemoryParts parts_;
  std::optional<Patience> patience_;  ///< anew when the lowest rank has begun
  const std::size_t index_;
  MemoryLink link_;
  std::optional<Status> outcome_;  ///< once the lowest rank has told it
};

HostMemory Receiver::run() {
  SharedMemory memory;
  Status report;
  try {
    memory = take();
  } catch (...) {
    report = current_exception_status();
  }
  const bool over =
      outcome_ || report.code() == Code::kPeerLost || report.code() == Code::kShutdown;
  try {
    link_.send(report, patience_->until());
  } catch (const Error&) {
    if (!over) {
      throw;
    }
  }
  if (over) {
    throw Error(outcome_.value_or(report));
  }
  Status outcome;
  try {
    outcome = await_message("said whether all ranks have the memory of their host");
  } catch (const Error& error) {
    // That the lowest rank has not answered is no more than what has failed here before.
    throw error.code() == Code::kTimeout && !report.ok() ? Error(report) : error;
  }
  if (!outcome.ok()) {
    throw Error(outcome);
  }
  return parts_.divide(std::move(memory));
}

SharedMemory Receiver::take() {
  const MemoryInvitation invitation = await_invitation();
  patience_.emplace(parts_.what().timeout_s * kPatience, parts_.what().interrupt);
  parts_.set_nonce(invitation.nonce);
  const Socket descriptor = fetch(invitation.name);
  SharedMemory memory = SharedMemory::map(descriptor, parts_.total_bytes());
  parts_.check(memory, 0);
  parts_.require_room(index_);
  parts_.take(memory, descriptor, index_);
  return memory;
}

MemoryInvitation Receiver::await_invitation() {
  const Status message = await_message("made the memory of its host");
  if (!message.ok()) {
    outcome_ = message;
    throw Error(message);
  }
  MemoryInvitation invitation{};
  if (message.message().size() != sizeof invitation) {
    throw Error(Code::kInternal,
                "[shm] " + rank_name(link_.rank()) + " sent an invitation of " +
                    std::to_string(message.message().size()) + " bytes (expected " +
                    std::to_string(sizeof invitation) +
                    "); this is a bug in aiacc, please report it");
  }
  std::memcpy(&invitation, message.message().data(), sizeof invitation);
  invitation.name[sizeof invitation.name - 1] = '\0';
  if (invitation.bytes != parts_.total_bytes()) {
    throw Error(Code::kEngine,
                rank_name(link_.rank()) + " has " + std::to_string(invitation.bytes) +
                    " bytes for all ranks (expected " + std::to_string(parts_.total_bytes()) +
                    "); AIACC_LANES must be equal on all ranks");
  }
  return invitation;
}

/// The descriptor of the memory, from the lowest rank's Unix socket. Throws the outcome if that
/// comes first.
Socket Receiver::fetch(const std::string& name) {
  const MemoryMark mark = parts_.mark_of(index_);
  Socket socket;
  while (true) {
    if (!socket.valid()) {
      socket = connect_unix(name);
      if (socket.valid() && !send_message(socket, &mark, sizeof mark)) {
        socket.close();
      }
    }
    if (socket.valid()) {
      MemoryMark echo{};
      UnixMessage message = receive_message(socket, &echo, sizeof echo);
      if (message.descriptor.valid()) {
        return std::move(message.descriptor);
      }
      if (message.kind != UnixMessage::kNothing) {
        socket.close();  // strangers have crowded it out
      }
    }
    outcome_ = link_.receive();
    if (outcome_) {
      AIACC_CHECK(!outcome_->ok());
      throw Error(*outcome_);
    }
    if (!patience_->sleep({link_.readable(), {socket.fd(), POLLIN, 0}},
                          socket.valid() ? kLong : kReopenAfter)) {
      throw Error(Code::kTimeout,
                  "[shm] " + rank_name(link_.rank()) + " has not given its memory in " +
                      std::to_string(patience_->seconds()) +
                      " s; is it alive? (AIACC_CONNECT_TIMEOUT_S)");
    }
  }
}

/// What the lowest rank says next; `what` it has not done if it says nothing.
Status Receiver::await_message(const char* what) {
  while (true) {
    const std::optional<Status> message = link_.receive();
    if (message) {
      return *message;
    }
    if (!patience_->sleep({link_.readable()})) {
      throw Error(Code::kTimeout,
                  "[shm] " + rank_name(link_.rank()) + " has not " + what + " in " +
                      std::to_string(patience_->seconds()) +
                      " s; is it alive? (AIACC_CONNECT_TIMEOUT_S)");
    }
  }
}

}  // namespace

HostMemory receive_memory(const MemorySharing& sharing, std::size_t index, MemoryLink link) {
  return Receiver(sharing, index, std::move(link)).run();
}

}  // namespace aiacc
