#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/event.h"

namespace aiacc {

/// Owns a connected, non-blocking TCP socket with TCP_NODELAY. Movable, closes on destruction, and
/// in a child of fork at once.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void close() noexcept;
  /// Ends both directions without freeing the descriptor: wakes every thread that polls it.
  void shutdown() noexcept;

  /// TCP_NODELAY, keepalive. No timer of the kernel ends the connection of a rank that lives:
  /// whoever waits for a rank judges it, see docs/failures.md.
  void set_options();

  /// Sends at most so many bytes per second from now on. Throws Error(kInternal) if the kernel
  /// refuses.
  void limit_rate(std::size_t bytes_per_s);

  /// Bytes moved now, 0 if the call would block. Throw Error(kPeerLost) when the connection is
  /// gone; `peer` names it in the text. Never raise SIGPIPE.
  std::size_t send_some(const iovec* parts, int count, const std::string& peer);
  std::size_t send_some(const void* data, std::size_t bytes, const std::string& peer) {
    const iovec part{const_cast<void*>(data), bytes};
    return send_some(&part, 1, peer);
  }
  std::size_t recv_some(const iovec* parts, int count, const std::string& peer);
  std::size_t recv_some(void* data, std::size_t bytes, const std::string& peer) {
    const iovec part{data, bytes};
    return bytes == 0 ? 0 : recv_some(&part, 1, peer);
  }

  /// Bytes that were sent and that the kernel at the other end has not taken in yet.
  std::size_t unacknowledged() const noexcept;

  /// Sends all of it, and sleeps while there is no room. Throws Error(kTimeout) at `deadline`, and
  /// what `send_some` throws.
  void send_all(const void* data,
                std::size_t bytes,
                const std::string& peer,
                Clock::time_point deadline);

 private:
  int fd_ = -1;
};

/// Resolves and connects to a listener that has been there. Throws Error(kPeerLost) if it is gone:
/// the connection is refused. Anything else is tried again until `deadline`: Error(kTimeout) that
/// names the address. Throws Error(kShutdown) when `interrupt`, a descriptor unless it is -1,
/// becomes readable meanwhile.
Socket connect_to(const std::string& address, Clock::time_point deadline, int interrupt = -1);

/// "host:port" with IPv6 hosts in brackets. Throws Error(kInvalidArgument).
std::pair<std::string, int> split_address(const std::string& address);

/// Bound, listening socket on a port of the kernel's choice, for IPv4 and, where the host has it,
/// for IPv6.
class Listener {
 public:
  /// Answers connections to the addresses `only`, all this host's own; to any if there are none.
  /// Throws Error(kInvalidArgument).
  explicit Listener(const std::vector<std::string>& only = {});
  explicit Listener(const std::string& address) : Listener(std::vector<std::string>{address}) {}

  int port() const { return port_; }
  /// "host:port" that connects on this host; others may need another address of it.
  std::string address() const;
  int fd() const { return socket_.fd(); }
  /// Accepts one connection if there is one, else an invalid Socket. Never blocks. Throws
  /// Error(kEngine) when no descriptor is left for it.
  Socket accept();
  /// For that moment: answers the connection that came first with one byte and closes it. False if
  /// there was none. Never blocks.
  bool turn_away(std::uint8_t answer) noexcept;

 private:
  bool answers(int fd) const;

  std::vector<std::string> only_;  // normalised
  Socket socket_;
  int port_ = 0;
  Socket spare_;  ///< any descriptor, given up for another while all are in use
};

}  // namespace aiacc
