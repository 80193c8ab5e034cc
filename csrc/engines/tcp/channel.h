#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/base/dtype.h"
#include "csrc/base/socket.h"
#include "csrc/engines/cancellation.h"

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
  Channel(Socket socket, int peer, std::string lane)
      : socket_(std::move(socket)), peer_(peer), lane_(std::move(lane)) {}

  int fd() const { return socket_.fd(); }

  /// Bytes moved now, 0 if the call would block. Throw Error(kPeerLost) naming lane and rank.
  std::size_t send_some(const iovec* parts, int count);
  std::size_t recv_some(const iovec* parts, int count);

  /// Throws Error(kInternal) if the peer's operation is another one than `mine`, as it should look
  /// from there.
  void check_header(const OpHeader& mine, const OpHeader& theirs) const;

 private:
  Socket socket_;
  int peer_;
  std::string lane_;
};

/// Sleeps until `out` is writable, `in` readable (null: not wanted, may be the same channel) or
/// `cancellation` is set, which it throws.
void wait_until_ready(const Channel* out, const Channel* in, const Cancellation& cancellation);

}  // namespace aiacc
