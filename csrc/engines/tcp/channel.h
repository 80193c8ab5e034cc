#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/base/dtype.h"
#include "csrc/base/socket.h"
#include "csrc/base/wait_mark.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/tcp/link_judge.h"

namespace aiacc {

/// First bytes of every message of an operation. Order on a lane is agreed, so this carries no
/// information; it turns ranks that disagree into an error instead of garbage in tensors.
struct OpHeader {
  enum Kind : std::uint8_t {
    kAllReduce = 1,
    kBroadcast = 2,
    kAllGather = 3,
    kReduceScatter = 4,
    kAllToAll = 5,
  };

  std::uint8_t magic = 0xa1;
  std::uint8_t kind = 0;
  std::uint8_t dtype = 0;   ///< or 0
  std::uint8_t detail = 0;  ///< ReduceOp, or 0
  std::uint32_t sequence = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(OpHeader) == 16, "part of the wire format");

/// A socket of one lane and the rank at its other end. Used by the thread that drives the lane.
class Channel {
 public:
  /// `peer_timeout_s`: how long nothing may arrive at the other end of the link. `mark` is the
  /// lane's, which its channels share, or null.
  Channel(Socket socket,
          int peer,
          const std::string& lane,
          double peer_timeout_s,
          WaitMark* mark = nullptr)
      : socket_(std::move(socket)),
        peer_(peer),
        name_("rank " + std::to_string(peer) + " on " + lane),
        judge_(peer_timeout_s),
        mark_(mark) {}

  int fd() const { return socket_.fd(); }
  int peer() const { return peer_; }
  WaitMark* mark() const { return mark_; }
  /// How long a wait may sleep before it has a look at the link.
  std::chrono::milliseconds look_every() const;
  /// Throws Error(kPeerLost) if the link is dead.
  void check_link();

  /// Bytes moved now, 0 if the call would block. Throw Error(kPeerLost) naming lane and rank.
  std::size_t send_some(const iovec* parts, int count) {
    return socket_.send_some(parts, count, name_);
  }
  std::size_t recv_some(const iovec* parts, int count) {
    return socket_.recv_some(parts, count, name_);
  }

  /// Throws Error(kInternal) if the peer's operation is another one than `mine`, as it should look
  /// from there.
  void check_header(const OpHeader& mine, const OpHeader& theirs) const;

 private:
  Socket socket_;
  int peer_;
  std::string name_;
  LinkJudge judge_;
  WaitMark* mark_;
};

/// Sleeps until there is room in `to` (if `sends`), something in `from` (if `receives`; may be the
/// same channel), or `cancellation` is set, which it throws. Looks after the links of both
/// meanwhile: throws Error(kPeerLost) if one is dead, never because the rank at its end is busy.
void wait_until_ready(
    Channel& to, bool sends, Channel& from, bool receives, const Cancellation& cancellation);

}  // namespace aiacc
