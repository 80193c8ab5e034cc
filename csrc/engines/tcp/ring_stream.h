#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/tcp_info.h"
#include "csrc/engines/engine.h"
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

/// Runs schedules on one lane's two sockets, several at a time: they follow each other on the
/// streams, so what may leave of one leaves when the one before has been sent, whether or not that
/// one has been received. One thread at a time; throws Error.
class RingStream {
 public:
  RingStream(Channel next, Channel previous, const Cancellation& cancellation);

  /// An empty schedule for the caller to fill in, before `start`.
  RingSchedule& prepare();
  /// Begins the one that `prepare` has given: moves what moves without waiting. `ticket` names it.
  void start(int ticket);
  /// Blocks until the oldest one that was started, which has this ticket, is done.
  void finish(int ticket);
  /// Both, for one that is alone.
  void run();

  /// Seconds in which something sent to the next rank had not arrived yet. Any thread.
  double send_busy_s() const { return tcp_busy_s(next_.fd()); }

 private:
  /// A schedule that is under way.
  struct Entry {
    RingSchedule schedule;
    int ticket = 0;
    std::size_t element = 1;
    // Bytes of both streams; the header counts as part of them.
    std::size_t out_total = 0;
    std::size_t in_total = 0;
  };

  Entry& entry(std::uint64_t number) { return entries_[number % entries_.size()]; }
  const Entry& entry(std::uint64_t number) const { return entries_[number % entries_.size()]; }
  bool is_done(std::uint64_t number) const { return number < out_number_ && number < in_number_; }
  bool move();
  bool send(bool eager);
  bool receive();
  void take(std::size_t bytes);
  void fold(bool everything);
  void go_on();
  std::size_t sendable() const;

  Channel next_;
  Channel previous_;
  const Cancellation& cancellation_;

  // Schedules are numbered as they come; those from finished_ to started_ are under way.
  std::array<Entry, Engine::kTickets> entries_;
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;

  // Where the streams are: in which schedule, and at which position there.
  std::uint64_t out_number_ = 0;
  std::size_t out_sent_ = 0;
  std::size_t out_piece_ = 0;   // index of the piece that holds position out_sent_
  std::size_t out_offset_ = 0;  // and where in it
  std::uint64_t in_number_ = 0;
  std::size_t in_finished_ = 0;
  std::size_t in_header_ = 0;  // header bytes received
  std::size_t in_piece_ = 0;
  std::size_t in_offset_ = 0;  // finished bytes of that piece

  OpHeader their_header_;
  std::vector<char> block_;  // received and not yet reduced; small enough to stay in the cache
  std::size_t held_ = 0;
};

}  // namespace aiacc
