#include "csrc/control/shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

/// A name that begins with a zero is in no file system.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  AIACC_CHECK(name.size() + 1 < sizeof address.sun_path);
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

/// Room for one descriptor beside a message.
union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

std::string random_text() {
  constexpr int kWords = 4;
  std::random_device random;
  std::string digits;
  for (int word = 0; word < kWords; ++word) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", random());
    digits += text;
  }
  return digits;
}

UnixSocket::UnixSocket()
    : name_("aiacc-" + random_text()),
      socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  const auto [address, length] = address_of(name_);
  if (!socket_.valid() ||
      bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    throw system_error(Code::kEngine, "[shm] no Unix socket for ranks that share memory", errno);
  }
}

int UnixSocket::send(const std::string& name,
                     const void* data,
                     std::size_t bytes,
                     int descriptor) noexcept {
  auto [address, length] = address_of(name);
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = length;
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
  return sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

bool UnixSocket::receive(void* data, std::size_t bytes, Socket& descriptor) {
  iovec part{data, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  message.msg_control = &control;
  // Not the padding, in which there is room for two.
  message.msg_controllen = CMSG_LEN(sizeof(int));
  if (recvmsg(socket_.fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0) {
    return false;
  }
  descriptor.close();
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len >= CMSG_LEN(sizeof(int))) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
    descriptor = Socket(received);
  } else if ((message.msg_flags & MSG_CTRUNC) != 0) {
    throw Error(
        Code::kEngine,
        "[shm] the system did not hand over the memory of another rank (too many open files, "
        "ulimit -n, or a security policy)");
  }
  return true;
}

void UnixSocket::clear() noexcept {
  char dropped[64];
  while (recv(socket_.fd(), dropped, sizeof dropped, MSG_DONTWAIT) >= 0) {
  }
}

}  // namespace aiacc
