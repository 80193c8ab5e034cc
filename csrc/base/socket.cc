#include "csrc/base/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "csrc/base/error.h"
#include "csrc/base/fork_guard.h"

namespace aiacc {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

int milliseconds_until(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 60'000));
}

void set_int(int fd, int level, int option, int value) {
  // Best effort: a kernel without the option still works, only slower to notice failures.
  setsockopt(fd, level, option, &value, sizeof value);
}

std::string format_address(const sockaddr_storage& address) {
  char host[INET6_ADDRSTRLEN] = {};
  int port = 0;
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
    port = ntohs(v6.sin6_port);
    return "[" + std::string(host) + "]:" + std::to_string(port);
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
  port = ntohs(v4.sin_port);
  return std::string(host) + ":" + std::to_string(port);
}

/// The IPv4 address to listen on. "" takes the first interface that is up and not loopback.
in_addr find_interface(const std::string& wanted) {
  in_addr result{};
  if (!wanted.empty() && inet_pton(AF_INET, wanted.c_str(), &result) == 1) {
    return result;
  }
  ifaddrs* head = nullptr;
  if (getifaddrs(&head) != 0) {
    throw system_error(Code::kInternal, "[socket] getifaddrs", errno);
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(head, &freeifaddrs);
  std::string known;
  for (const ifaddrs* entry = head; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) {
      continue;
    }
    const bool up = (entry->ifa_flags & IFF_UP) != 0;
    const bool loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    known += (known.empty() ? "" : ", ") + std::string(entry->ifa_name);
    if (wanted.empty() ? (up && !loopback) : wanted == entry->ifa_name) {
      return reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    }
  }
  if (wanted.empty()) {
    result.s_addr = htonl(INADDR_LOOPBACK);
    return result;
  }
  throw Error(Code::kInvalidArgument,
              "[socket] AIACC_IFACE=" + wanted + " is neither an IPv4 address nor an interface " +
                  "with one (this host has: " + known + ")");
}

/// One attempt on one resolved address; returns 0 or the errno of the failure, EINTR if interrupted.
int try_connect(const addrinfo& target, Clock::time_point deadline, int interrupt, Socket& result) {
  Socket socket(::socket(target.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return errno;
  }
  if (connect(socket.fd(), target.ai_addr, target.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) {
      return errno;
    }
    pollfd entries[2] = {{socket.fd(), POLLOUT, 0}, {interrupt, POLLIN, 0}};
    int ready = 0;
    do {
      ready = poll(entries, 2, milliseconds_until(deadline));
    } while (ready < 0 && errno == EINTR);  // a signal is no connection
    if (ready == 0) {
      return ETIMEDOUT;
    }
    if (entries[0].revents == 0) {
      return EINTR;
    }
    int failure = 0;
    socklen_t length = sizeof failure;
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &failure, &length);
    if (failure != 0) {
      return failure;
    }
  }
  set_int(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  result = std::move(socket);
  return 0;
}

bool stays_on_this_host(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_length = sizeof own;
  socklen_t peer_length = sizeof peer;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) != 0 ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) {
    return false;
  }
  const auto host = [](const sockaddr_storage& address) {
    const std::string text = format_address(address);
    return text.substr(0, text.rfind(':'));
  };
  return host(own) == host(peer);
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  if (fd >= 0) {
    fork_guard::opened(fd);
  }
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() { close(); }

void Socket::close() noexcept {
  if (fd_ >= 0 && fork_guard::closing(fd_)) {
    ::close(fd_);
  }
  fd_ = -1;
}

void Socket::shutdown() noexcept {
  if (fd_ >= 0) {
    ::shutdown(fd_, SHUT_RDWR);
  }
}

void Socket::set_options(double peer_timeout_s) {
  const int seconds = std::max(1, static_cast<int>(peer_timeout_s));
  set_int(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
  set_int(fd_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_int(fd_, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_int(fd_, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_int(fd_, IPPROTO_TCP, TCP_KEEPCNT, std::max(1, seconds - 1));
  set_int(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(peer_timeout_s * 1000));
  if (stays_on_this_host(fd_)) {
    // Nothing is lost or queued there, and the pacing timers of BBR cost a third of the throughput.
    static constexpr char kCongestionControl[] = "reno";
    setsockopt(fd_, IPPROTO_TCP, TCP_CONGESTION, kCongestionControl, sizeof kCongestionControl - 1);
  }
}

void Socket::limit_rate(std::size_t bytes_per_s) {
  const std::uint64_t rate = bytes_per_s;
  if (setsockopt(fd_, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) != 0) {
    throw system_error(Code::kInternal, "[socket] SO_MAX_PACING_RATE", errno);
  }
}

std::size_t Socket::send_some(const void* data, std::size_t bytes, const std::string& peer) {
  while (true) {
    const ssize_t sent = ::send(fd_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      return static_cast<std::size_t>(sent);
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return 0;
    }
    if (errno != EINTR) {
      throw system_error(Code::kPeerLost, "[socket] lost the connection to " + peer, errno);
    }
  }
}

std::size_t Socket::recv_some(void* data, std::size_t bytes, const std::string& peer) {
  if (bytes == 0) {
    return 0;
  }
  while (true) {
    const ssize_t got = ::recv(fd_, data, bytes, MSG_DONTWAIT);
    if (got > 0) {
      return static_cast<std::size_t>(got);
    }
    if (got == 0) {
      throw Error(Code::kPeerLost,
                  "[socket] " + peer + " closed the connection; it exited or was killed");
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return 0;
    }
    if (errno != EINTR) {
      throw system_error(Code::kPeerLost, "[socket] lost the connection to " + peer, errno);
    }
  }
}

void Socket::send_all(const void* data,
                      std::size_t bytes,
                      const std::string& peer,
                      Clock::time_point deadline) {
  const auto* next = static_cast<const char*>(data);
  while (true) {
    const std::size_t sent = send_some(next, bytes, peer);
    next += sent;
    bytes -= sent;
    if (bytes == 0) {
      return;
    }
    pollfd entry{fd_, POLLOUT, 0};
    if (sent == 0 && poll(&entry, 1, milliseconds_until(deadline)) == 0) {
      throw Error(Code::kTimeout,
                  "[socket] " + peer + " did not take " + std::to_string(bytes) +
                      " bytes in time; is it frozen?");
    }
  }
}

std::pair<std::string, int> split_address(const std::string& address) {
  const auto colon = address.rfind(':');
  const std::string remedy = " (expected host:port, for example 10.0.0.1:29500)";
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    throw Error(Code::kInvalidArgument, "[socket] address '" + address + "'" + remedy);
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::string digits = address.substr(colon + 1);
  const bool numeric = std::all_of(
      digits.begin(), digits.end(), [](unsigned char c) { return c >= '0' && c <= '9'; });
  const int port = numeric && digits.size() <= 5 ? std::stoi(digits) : -1;
  if (port < 0 || port > 65535) {
    throw Error(Code::kInvalidArgument, "[socket] address '" + address + "'" + remedy);
  }
  return {host, port};
}

Socket connect_to(const std::string& address, Clock::time_point deadline, int interrupt) {
  const auto [host, port] = split_address(address);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* head = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &head);
  if (failure != 0) {
    throw Error(Code::kInvalidArgument,
                "[socket] cannot resolve '" + host + "': " + gai_strerror(failure) +
                    "; check the name, or use an IP address");
  }
  const AddressList owner(head, &freeaddrinfo);
  auto pause = std::chrono::milliseconds(5);
  while (true) {
    int last = 0;
    for (const addrinfo* target = head; target != nullptr; target = target->ai_next) {
      Socket socket;
      last = try_connect(*target, deadline, interrupt, socket);
      if (last == 0) {
        return socket;
      }
    }
    if (last == ECONNREFUSED) {
      throw system_error(
          Code::kPeerLost, "[socket] nobody listens any more at " + address, ECONNREFUSED);
    }
    // There is no event to wait for, so back off.
    if (Clock::now() + pause >= deadline) {
      throw system_error(
          Code::kTimeout,
          "[socket] cannot connect to " + address +
              " before the deadline; is that host reachable on that port (firewall, AIACC_IFACE)?",
          last);
    }
    pollfd entry{interrupt, POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(pause.count())) > 0) {
      throw Error(Code::kShutdown, "[socket] connecting to " + address + " was interrupted");
    }
    pause = std::min(pause * 2, std::chrono::milliseconds(200));
  }
}

Listener::Listener(const std::string& interface)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  if (!socket_.valid()) {
    throw system_error(Code::kInternal, "[socket] socket", errno);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const in_addr advertised = find_interface(interface);
  // Without a chosen interface ranks of one host meet on loopback, so every address must answer.
  address.sin_addr.s_addr = interface.empty() ? htonl(INADDR_ANY) : advertised.s_addr;
  if (bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(socket_.fd(), 1024) != 0) {
    throw system_error(
        Code::kInvalidArgument, "[socket] cannot listen on interface '" + interface + "'", errno);
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&bound), &length);
  reinterpret_cast<sockaddr_in&>(bound).sin_addr = advertised;
  address_ = format_address(bound);
}

Socket Listener::accept() {
  Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.valid()) {
    set_int(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  }
  return socket;
}

}  // namespace aiacc
