#include "csrc/engines/tcp/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

/// A dead link is noticed so much of the limit late, at most.
constexpr int kLooksPerLimit = 8;

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
                    describe(theirs) + " (expected " + describe(mine) +
                    "); all ranks must issue the same operations in the same order on a lane; this "
                    "is a bug in aiacc, please report it");
  }
}

std::chrono::milliseconds Channel::look_every() const {
  return std::chrono::milliseconds(
      std::clamp<long long>(std::llround(judge_.limit_s() * 1e3 / kLooksPerLimit), 1, 60'000));
}

void Channel::check_link() {
  if (judge_.is_dead(tcp_link(fd()), Clock::now())) {
    char limit[32];
    std::snprintf(limit, sizeof limit, "%.3g", judge_.limit_s());
    throw Error(Code::kPeerLost,
                "[tcp] lost rank " + std::to_string(peer_) + " on " + lane_ +
                    ": nothing has arrived there for " + limit +
                    " s (AIACC_PEER_TIMEOUT_S) although it has room; the link is down");
  }
}

void wait_until_ready(
    Channel& to, bool sends, Channel& from, bool receives, const Cancellation& cancellation) {
  pollfd entries[3] = {{cancellation.fd(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLOUT, 0}};
  if (receives) {
    entries[1].fd = from.fd();
  }
  if (sends && receives && &to == &from) {
    entries[1].events = POLLIN | POLLOUT;
  } else if (sends) {
    entries[2].fd = to.fd();
  }
  // A dead process ends the wait by its closed connection, a frozen one by the cancellation: the
  // control plane asks it. A dead link between two ranks may be known to its lanes alone.
  const auto start = Clock::now();
  while (true) {
    const int ready = poll_until(entries, 3, Clock::now() + to.look_every());
    cancellation.check();
    WaitMark* const mark = from.mark();
    if (ready != 0 && mark != nullptr) {
      mark->moves();
    }
    if (ready != 0) {
      return;
    }
    if (mark != nullptr) {
      mark->sleeps(start, receives ? from.peer() : to.peer());
    }
    to.check_link();
    if (&to != &from) {
      from.check_link();
    }
  }
}

}  // namespace aiacc
