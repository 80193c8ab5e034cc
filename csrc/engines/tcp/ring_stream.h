#pragma once

#include <cstddef>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/tcp_info.h"
#include "csrc/engines/tcp/channel.h"

namespace aiacc {

/// What one rank sends to its successor and receives from its predecessor in one collective.
///
/// Seen as two byte streams, every ring collective obeys one rule: what is sent after the first
/// `ready` bytes is what was received (and reduced) before, in the same order. So byte `ready + n`
/// of the outgoing stream may leave as soon as n incoming bytes are finished, and steps of the
/// textbook algorithm overlap without any bookkeeping of their own.
struct RingSchedule {
  struct Out {
    const char* data;
    std::size_t bytes;
  };
  struct In {
    char* into;
    const char* operand;  ///< into[i] = operand[i] op received[i]; null: into[i] = received[i]
    std::size_t bytes;
    bool last;  ///< the reduction is complete with this: apply its factor
  };

  OpHeader header;
  bool sends = true;
  bool receives = true;
  std::vector<Out> out;
  std::vector<In> in;
  std::size_t ready = 0;
  Reduction reduction{DataType::kUInt8, ReduceOp::kSum};

  void clear();
};

/// Runs schedules on one lane's two sockets. One thread at a time; blocks; throws Error.
class RingStream {
 public:
  RingStream(Channel next, Channel previous, const Cancellation& cancellation);

  void run(const RingSchedule& schedule);

  /// Seconds in which something sent to the next rank had not arrived yet. Any thread.
  double send_busy_s() const { return tcp_busy_s(next_.fd()); }

 private:
  void start(const RingSchedule& schedule);
  bool send(bool eager);
  bool receive();
  void take(std::size_t bytes);
  void fold(bool everything);
  std::size_t sendable() const;
  bool done() const;

  Channel next_;
  Channel previous_;
  const Cancellation& cancellation_;

  const RingSchedule* schedule_ = nullptr;
  std::size_t element_ = 1;

  // Positions in both streams; the header counts as part of them.
  std::size_t out_total_ = 0;
  std::size_t out_sent_ = 0;
  std::size_t out_piece_ = 0;   // index of the piece that holds position out_sent_
  std::size_t out_offset_ = 0;  // and where in it
  std::size_t in_total_ = 0;
  std::size_t in_finished_ = 0;
  std::size_t in_header_ = 0;  // header bytes received
  std::size_t in_piece_ = 0;
  std::size_t in_offset_ = 0;  // finished bytes of that piece

  OpHeader their_header_;
  std::vector<char> block_;  // received and not yet reduced; small enough to stay in the cache
  std::size_t held_ = 0;
};

}  // namespace aiacc
