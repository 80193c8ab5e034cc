#pragma once

#include <cstddef>
#include <string>

#include "csrc/base/socket.h"

namespace aiacc {

/// 32 hexadecimal digits that nobody can guess.
std::string random_text();

/// A Unix socket for whole messages under a name that it draws, which is in no file system: it ends
/// with the process, and only who is in the same network namespace can send to it. Never blocks,
/// any thread.
class UnixSocket {
 public:
  /// Throws Error(kEngine).
  UnixSocket();

  const std::string& name() const { return name_; }
  /// Readable while there is a message.
  int fd() const { return socket_.fd(); }

  /// Sends a message of at most a few hundred bytes to the socket of this name, and with it
  /// `descriptor` unless it is -1. Returns 0 or an errno value: EAGAIN if there is no room, and
  /// ECONNREFUSED if nobody here has that name.
  int send(const std::string& name,
           const void* data,
           std::size_t bytes,
           int descriptor = -1) noexcept;

  /// Takes the first message, cut off after so many bytes, with the descriptor that came with it;
  /// whether there was one. Throws Error(kEngine) when this process cannot have another descriptor.
  bool receive(void* data, std::size_t bytes, Socket& descriptor);
  /// Forgets all messages.
  void clear() noexcept;

 private:
  std::string name_;
  Socket socket_;
};

}  // namespace aiacc
