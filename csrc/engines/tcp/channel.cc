#include "csrc/engines/tcp/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

msghdr message_of(const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return message;
}

std::string describe(const OpHeader& header) {
  static const char* const kKinds[] = {
      "nothing known", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"};
  return std::string(kKinds[header.kind <= OpHeader::kAllToAll ? header.kind : 0]) + " number " +
         std::to_string(header.sequence) + " of " + std::to_string(header.bytes) +
         " bytes (dtype " + std::to_string(header.dtype) + ", op " + std::to_string(header.detail) +
         ")";
}

}  // namespace

std::size_t Channel::send_some(const iovec* parts, int count) {
  const msghdr message = message_of(parts, count);
  while (true) {
    const ssize_t sent = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      return static_cast<std::size_t>(sent);
    }
    if (would_block(errno)) {
      return 0;
    }
    if (errno != EINTR) {
      throw system_error(Code::kPeerLost,
                         "[tcp] lost rank " + std::to_string(peer_) + " while sending on " + lane_,
                         errno);
    }
  }
}

std::size_t Channel::recv_some(const iovec* parts, int count) {
  msghdr message = message_of(parts, count);
  while (true) {
    const ssize_t got = recvmsg(fd(), &message, MSG_DONTWAIT);
    if (got > 0) {
      return static_cast<std::size_t>(got);
    }
    if (got == 0) {
      throw Error(Code::kPeerLost,
                  "[tcp] lost rank " + std::to_string(peer_) + " on " + lane_ +
                      ": it closed the connection; it exited or was killed");
    }
    if (would_block(errno)) {
      return 0;
    }
    if (errno != EINTR) {
      throw system_error(
          Code::kPeerLost,
          "[tcp] lost rank " + std::to_string(peer_) + " while receiving on " + lane_,
          errno);
    }
  }
}

void Channel::check_header(const OpHeader& mine, const OpHeader& theirs) const {
  if (std::memcmp(&mine, &theirs, sizeof mine) != 0) {
    throw Error(Code::kInternal,
                "[tcp] ranks disagree on " + lane_ + ": rank " + std::to_string(peer_) + " is at " +
                    describe(theirs) + ", this rank at " + describe(mine) +
                    "; all ranks must issue the same operations in the same order on a lane; this "
                    "is a bug in aiacc, please report it");
  }
}

void wait_until_ready(const Channel* out, const Channel* in, const Cancellation& cancellation) {
  pollfd entries[3] = {{cancellation.fd(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLOUT, 0}};
  if (in != nullptr) {
    entries[1].fd = in->fd();
  }
  if (out != nullptr && out == in) {
    entries[1].events = POLLIN | POLLOUT;
  } else if (out != nullptr) {
    entries[2].fd = out->fd();
  }
  // No timeout: a dead peer or link ends the wait by TCP_USER_TIMEOUT and keepalive, anything else
  // by the cancellation.
  if (poll(entries, 3, -1) < 0 && errno != EINTR) {
    throw system_error(Code::kInternal, "[tcp] poll", errno);
  }
  cancellation.check();
}

}  // namespace aiacc
