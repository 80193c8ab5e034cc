#include "csrc/engines/tcp/channel.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

/// A dead link is noticed so much of the limit late, at most.
constexpr int kLooksPerLimit = 8;

std::string describe(const OpHeader& header) {
  static const char* const kKinds[] = {
      "nothing known", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"};
  return std::string(kKinds[header.kind <= OpHeader::kAllToAll ? header.kind : 0]) + " number " +
         std::to_string(header.sequence) + " of " + std::to_string(header.bytes) +
         " bytes (dtype " + std::to_string(header.dtype) + ", op " + std::to_string(header.detail) +
         ")";
}

}  // namespace

void Channel::check_header(const OpHeader& mine, const OpHeader& theirs) const {
  if (std::memcmp(&mine, &theirs, sizeof mine) != 0) {
    throw Error(Code::kInternal,
                "[tcp] ranks disagree: " + name_ + " is at " + describe(theirs) + " (expected " +
                    describe(mine) +
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
                "[tcp] lost " + name_ + ": nothing has arrived there for " + limit +
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
    if (ready != 0) {
      if (mark != nullptr) {
        mark->moves();
      }
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
