#include "csrc/base/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "csrc/base/descriptors.h"
#include "csrc/base/error.h"
#include "csrc/base/fork_guard.h"

namespace aiacc {
namespace {

/// The most that the kernel allows: two minutes.
constexpr int kMostProbes = 127;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

void set_int(int fd, int level, int option, int value) {
  // Best effort: a kernel without the option still works, only slower to notice failures.
  setsockopt(fd, level, option, &value, sizeof value);
}

/// Without port and scope; an IPv4 address that an IPv6 socket shows is IPv4 again.
std::string host_text(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (address.ss_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    constexpr std::size_t kMappedBytes = 12;
    if (IN6_IS_ADDR_V4MAPPED(&v6)) {
      inet_ntop(AF_INET, v6.s6_addr + kMappedBytes, host.data(), host.size());
    } else {
      inet_ntop(AF_INET6, &v6, host.data(), host.size());
    }
  } else {
    const in_addr& v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    inet_ntop(AF_INET, &v4, host.data(), host.size());
  }
  return host.data();
}

/// The address of one end, which `name` (getsockname, getpeername) tells; "" if there is none.
std::string host_of(int fd, decltype(&getsockname) name) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  return name(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? host_text(address) : "";
}

AddressList numeric_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* head = nullptr;
  const int failure = getaddrinfo(host.c_str(), "0", &hints, &head);
  if (failure != 0) {
    throw Error(Code::kInvalidArgument,
                "[socket] '" + host + "' is no address of this host (" + gai_strerror(failure) +
                    "; expected an IPv4 or IPv6 address)");
  }
  return {head, &freeaddrinfo};
}

/// Connections that may wait while a rank is busy: one for each of its lanes from each of 1,000
/// others. The kernel makes it SOMAXCONN of the system, if that is less.
constexpr int kBacklog = 4096;

/// A socket that listens there, or an invalid one and errno.
Socket listen_at(const sockaddr* address, socklen_t length) {
  Socket socket(::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return socket;
  }
  if (address->sa_family == AF_INET6) {
    set_int(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (bind(socket.fd(), address, length) != 0 || listen(socket.fd(), kBacklog) != 0) {
    const int failure = errno;
    socket.close();
    errno = failure;
  }
  return socket;
}

Socket listen_anywhere() {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_any;
  Socket socket = listen_at(reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
  if (socket.valid()) {
    return socket;
  }
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  return listen_at(reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
}

/// One attempt on one resolved address; returns 0 or the errno of the failure, EINTR if
/// interrupted.
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
    if (poll_until(entries, 2, deadline) == 0) {
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

msghdr message_of(const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return message;
}

/// What a call that does not block returns, or -1 if it would block.
template <class Call>
ssize_t moved_by(const Call& call, const std::string& peer) {
  while (true) {
    const ssize_t bytes = call();
    if (bytes >= 0 || errno == EAGAIN || errno == EWOULDBLOCK) {
      return bytes;
    }
    if (errno != EINTR) {
      throw system_error(Code::kPeerLost, "[socket] lost " + peer, errno);
    }
  }
}

bool stays_on_this_host(int fd) {
  const std::string own = host_of(fd, &getsockname);
  return !own.empty() && own == host_of(fd, &getpeername);
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

void Socket::set_options() {
  // Keepalive asks, for firewalls that forget idle connections and for tcp_link, and gives up later
  // than whoever waits. TCP_USER_TIMEOUT would end connections to ranks that are only busy: it
  // counts the time in which their window is full.
  set_int(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
  set_int(fd_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_int(fd_, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_int(fd_, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_int(fd_, IPPROTO_TCP, TCP_KEEPCNT, kMostProbes);
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

std::size_t Socket::send_some(const iovec* parts, int count, const std::string& peer) {
  const msghdr message = message_of(parts, count);
  const ssize_t sent =
      moved_by([&] { return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT); }, peer);
  return static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
}

std::size_t Socket::recv_some(const iovec* parts, int count, const std::string& peer) {
  msghdr message = message_of(parts, count);
  const ssize_t got = moved_by([&] { return recvmsg(fd_, &message, MSG_DONTWAIT); }, peer);
  if (got == 0) {
    throw Error(Code::kPeerLost,
                "[socket] lost " + peer + ": it closed the connection; it exited or was killed");
  }
  return static_cast<std::size_t>(std::max<ssize_t>(got, 0));
}

std::size_t Socket::unacknowledged() const noexcept {
  int bytes = 0;
  return ioctl(fd_, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
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
    if (sent == 0 && poll_until(&entry, 1, deadline) == 0) {
      throw Error(Code::kTimeout,
                  "[socket] " + peer + " did not take " + std::to_string(bytes) +
                      " bytes in time; is it frozen?");
    }
  }
}

std::pair<std::string, int> split_address(const std::string& address) {
  const auto colon = std::min(address.rfind(':'), address.size());
  std::string host = address.substr(0, colon);
  const std::string digits = address.substr(std::min(colon + 1, address.size()));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool numeric = !digits.empty() && digits.size() <= 5 &&
                       digits.find_first_not_of("0123456789") == std::string::npos;
  const int port = numeric ? std::stoi(digits) : -1;
  if (host.empty() || port < 0 || port > 65535) {
    throw Error(
        Code::kInvalidArgument,
        "[socket] address '" + address + "' (expected host:port, for example 10.0.0.1:29500)");
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
  if (failure == EAI_SYSTEM && is_exhausted(errno)) {
    throw system_error(Code::kEngine, "[socket] cannot resolve '" + host + "'", errno);
  }
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
    if (is_exhausted(last)) {
      throw system_error(Code::kEngine, "[socket] cannot connect to " + address, last);
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
    if (poll_until(&entry, 1, Clock::now() + pause) > 0) {
      throw Error(Code::kShutdown, "[socket] connecting to " + address + " was interrupted");
    }
    pause = std::min(pause * 2, std::chrono::milliseconds(200));
  }
}

Listener::Listener(const std::vector<std::string>& only)
    : spare_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  std::vector<AddressList> addresses;
  for (const std::string& host : only) {
    addresses.push_back(numeric_address(host));
    sockaddr_storage address{};
    std::memcpy(&address, addresses.back()->ai_addr, addresses.back()->ai_addrlen);
    only_.push_back(host_text(address));
  }
  // The kernel turns others away where one address is all; else `accept` does.
  socket_ = addresses.size() == 1
                ? listen_at(addresses.front()->ai_addr, addresses.front()->ai_addrlen)
                : listen_anywhere();
  if (!socket_.valid()) {
    throw system_error(Code::kInvalidArgument,
                       "[socket] cannot listen" + (only.empty() ? "" : " at " + only.front()) +
                           " (expected an address of this host, AIACC_IFACE)",
                       errno);
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&bound), &length);
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

std::string Listener::address() const {
  const std::string host = only_.empty() ? "127.0.0.1" : only_.front();
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
         std::to_string(port_);
}

Socket Listener::accept() {
  while (true) {
    Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (is_exhausted(errno)) {
        throw system_error(
            Code::kEngine, "[socket] cannot accept a connection at " + address(), errno);
      }
      return socket;
    }
    if (answers(socket.fd())) {
      set_int(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
      return socket;
    }
  }
}

bool Listener::answers(int fd) const {
  return only_.size() < 2 ||
         std::find(only_.begin(), only_.end(), host_of(fd, &getsockname)) != only_.end();
}

bool Listener::turn_away(std::uint8_t answer) noexcept {
  spare_.close();
  bool came = false;
  {
    const Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    came = socket.valid();
    char unread[256];
    // Closing with unread bytes would reset the connection, and the answer with it.
    while (came && ::recv(socket.fd(), unread, sizeof unread, MSG_DONTWAIT) > 0) {
    }
    ::send(socket.fd(), &answer, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  spare_ = Socket(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return came;
}

}  // namespace aiacc
