#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>

#include "csrc/base/socket.h"

namespace aiacc {

/// Unix sockets of whole messages, by names that are in no file system: they end with the process,
/// and only who is in the same network namespace can connect. All here is non-blocking, any thread.

/// Listens under a name that it draws.
class UnixListener {
 public:
  /// Throws Error(kEngine).
  UnixListener();

  const std::string& name() const { return name_; }
  int fd() const { return socket_.fd(); }
  /// One connection of a process of this user if there is one, else an invalid Socket; others are
  /// closed. Throws Error(kEngine) when no descriptor is left for it.
  Socket accept();

 private:
  std::string name_;
  Socket socket_;
};

/// Wakes a thread of another process that sleeps in poll: an eventfd that has a name.
class UnixBell {
 public:
  /// Throws Error(kEngine).
  UnixBell();

  const std::string& name() const { return name_; }
  /// Readable once it was rung, until `clear`.
  int fd() const { return socket_.fd(); }
  void clear() noexcept;
  /// Rings that of this name, if it is still there.
  void ring(const std::string& name) noexcept;

 private:
  std::string name_;
  Socket socket_;
};

/// Connects to a listener of this user. An invalid socket if too many others want that at the
/// moment. Throws Error(kEngine) if there is none.
Socket connect_unix(const std::string& name);

/// Sends a message of at most a few hundred bytes, and with it `descriptor` unless it is -1. False
/// if the other side has gone. Throws Error(kEngine).
bool send_message(const Socket& socket, const void* data, std::size_t bytes, int descriptor = -1);

/// What one call of `receive_message` has found.
struct UnixMessage {
  enum Kind { kNothing, kGone, kMessage } kind = kNothing;
  std::size_t bytes = 0;
  Socket descriptor;
};

/// A message into `data`, with the descriptor that came with it. What does not fit is cut off.
/// Throws Error(kEngine) when this process cannot have another descriptor.
UnixMessage receive_message(const Socket& socket, void* data, std::size_t bytes);

}  // namespace aiacc
