#include "csrc/control/shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "csrc/base/descriptors.h"
#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr int kOptions = SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 1024;
constexpr int kWords = 4;

Socket new_socket(int type) {
  Socket socket(::socket(AF_UNIX, type | kOptions, 0));
  if (!socket.valid()) {
    throw system_error(Code::kEngine, "[shm] no Unix socket for ranks that share memory", errno);
  }
  return socket;
}

/// A name that begins with a zero is in no file system.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  AIACC_CHECK(name.size() + 1 < sizeof address.sun_path);
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

void bind_to(const Socket& socket, const std::string& name) {
  const auto [address, length] = address_of(name);
  if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    throw system_error(Code::kEngine, "[shm] cannot name a Unix socket", errno);
  }
}

std::string draw_name() {
  std::random_device random;
  std::string name = "aiacc-";
  for (int word = 0; word < kWords; ++word) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", random());
    name += text;
  }
  return name;
}

bool is_of_this_user(const Socket& socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == geteuid();
}

/// Room for one descriptor beside a message.
union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

UnixListener::UnixListener() : name_(draw_name()), socket_(new_socket(SOCK_SEQPACKET)) {
  bind_to(socket_, name_);
  if (listen(socket_.fd(), kBacklog) != 0) {
    throw system_error(Code::kEngine, "[shm] cannot listen on a Unix socket", errno);
  }
}

Socket UnixListener::accept() {
  while (true) {
    Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid() && is_exhausted(errno)) {
      throw system_error(Code::kEngine, "[shm] cannot accept the Unix socket of a rank", errno);
    }
    if (!socket.valid() || is_of_this_user(socket)) {
      return socket;
    }
  }
}

UnixBell::UnixBell() : name_(draw_name()), socket_(new_socket(SOCK_DGRAM)) {
  bind_to(socket_, name_);
}

void UnixBell::clear() noexcept {
  char rings[64];
  while (recv(socket_.fd(), rings, sizeof rings, MSG_DONTWAIT) > 0) {
  }
}

void UnixBell::ring(const std::string& name) noexcept {
  const auto [address, length] = address_of(name);
  const char once = 1;
  // Without room for another one it rings already.
  [[maybe_unused]] const auto sent = sendto(socket_.fd(),
                                            &once,
                                            sizeof once,
                                            MSG_DONTWAIT | MSG_NOSIGNAL,
                                            reinterpret_cast<const sockaddr*>(&address),
                                            length);
}

Socket connect_unix(const std::string& name) {
  const auto [address, length] = address_of(name);
  Socket socket = new_socket(SOCK_SEQPACKET);
  int result = 0;
  do {
    result = connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), length);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EAGAIN) {
    return {};
  }
  if (result != 0 || !is_of_this_user(socket)) {
    throw Error(Code::kEngine,
                "[shm] the lowest rank of this host does not listen on a Unix socket as this one " +
                    std::string("sees it (") +
                    (result != 0 ? std::strerror(errno) : "another user does") +
                    "): do they run in containers with networks of their own? Let the ranks of a " +
                    "host share one (docker run --network=host, one pod)");
  }
  return socket;
}

bool send_message(const Socket& socket, const void* data, std::size_t bytes, int descriptor) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  if (descriptor >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
    return false;
  }
  if (sent < 0) {
    throw system_error(Code::kEngine, "[shm] cannot pass memory over a Unix socket", errno);
  }
  return true;
}

UnixMessage receive_message(const Socket& socket, void* data, std::size_t bytes) {
  iovec part{data, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  message.msg_control = &control;
  message.msg_controllen =
      CMSG_LEN(sizeof(int));  // not the padding, in which there is room for two
  ssize_t got = 0;
  do {
    got = recvmsg(socket.fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return {};
  }
  if (got <= 0) {
    return {UnixMessage::kGone, 0, {}};
  }
  UnixMessage result{UnixMessage::kMessage, static_cast<std::size_t>(got), {}};
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len >= CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    result.descriptor = Socket(descriptor);
  } else if ((message.msg_flags & MSG_CTRUNC) != 0) {
    throw Error(
        Code::kEngine,
        "[shm] the system did not hand over the memory of another rank (too many open files, "
        "ulimit -n, or a security policy)");
  }
  return result;
}

}  // namespace aiacc
