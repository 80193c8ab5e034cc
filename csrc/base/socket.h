#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace aiacc {

using Clock = std::chrono::steady_clock;

/// Owns a connected, non-blocking TCP socket with TCP_NODELAY. Movable, closes on destruction, and in
/// a child of fork at once.
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

  /// Sets what is needed to notice a dead link: TCP_USER_TIMEOUT, keepalive, TCP_NODELAY.
  void set_options(double peer_timeout_s);

  /// Sends at most so many bytes per second from now on. Throws Error(kInternal) if the kernel
  /// refuses.
  void limit_rate(std::size_t bytes_per_s);

  /// Bytes moved now, 0 if the call would block. Throw Error(kPeerLost) when the connection is
  /// gone; `peer` names it in the text. Never raise SIGPIPE.
  std::size_t send_some(const void* data, std::size_t bytes, const std::string& peer);
  std::size_t recv_some(void* data, std::size_t bytes, const std::string& peer);

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
/// names the address. Throws Error(kShutdown) when `interrupt`, a descriptor unless it is -1, becomes
/// readable meanwhile.
Socket connect_to(const std::string& address, Clock::time_point deadline, int interrupt = -1);

/// "host:port" with IPv6 hosts in brackets. Throws Error(kInvalidArgument).
std::pair<std::string, int> split_address(const std::string& address);

/// Bound, listening socket on the chosen interface (name such as "eth0", an IP address, or "" for
/// the default route's) and a port of the kernel's choice.
class Listener {
 public:
  explicit Listener(const std::string& interface = "");
  const std::string& address() const { return address_; }
  int fd() const { return socket_.fd(); }
  /// Accepts one connection if there is one, else an invalid Socket. Never blocks.
  Socket accept();

 private:
  Socket socket_;
  std::string address_;
};

}  // namespace aiacc
