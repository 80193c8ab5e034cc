#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/control/control_plane.h"
#include "csrc/control/tcp/frame.h"

namespace aiacc {

/// A connection of the control mesh: frames on their way in both directions, and whether the peer
/// lives. Knows nothing of the others.
class ControlConnection {
 public:
  ControlConnection(int peer, Socket connected);

  int rank() const { return rank_; }
  const std::string& name() const { return name_; }
  int fd() const { return socket_.fd(); }

  /// Puts a frame behind those that are on their way; returns the bytes that it takes.
  std::size_t put(const Frame& frame);
  /// Sends what the connection takes now; returns whether nothing is left.
  bool send_some();
  bool flushed() const { return out_ == outbox_.size(); }
  /// Bytes of the outbox that the connection has taken.
  std::size_t sent() const { return out_; }
  /// Forgets what has not been sent.
  void clear_outbox() noexcept;

  /// Takes in what has come, not all of it if that is much; whether it was anything. What came
  /// before garbage is decoded when that is thrown.
  bool receive_some(std::vector<std::uint8_t>& buffer);
  /// The same, without a look at it.
  bool discard_some(std::vector<std::uint8_t>& buffer);
  /// The next frame that is not part of a round, in order of arrival; those of rounds are queued.
  bool next_notice(Frame& frame);
  bool has_round(std::uint32_t round) const;
  /// Those of what it has of this round, see `flags_of`.
  std::uint32_t round_flags(std::uint32_t round) const;
  bool has_rounds() const { return !rounds_.empty(); }
  /// Moves the share of this stage to `payload` if it has come.
  bool take_round(std::uint32_t round, std::uint8_t stage, Bytes& payload);

  /// At a look at time `now`: whether a ping is due. Throws Error(kPeerLost) if the last was not
  /// answered within `timeout`, or a frame does not come to its end. `absent`: nobody has looked
  /// for long, so that silence says nothing.
  bool ping_due(Clock::time_point now, bool absent, std::chrono::nanoseconds timeout);

  bool wants_room = false;  ///< whether the poller tells when the connection takes more
  bool pong_due = false;    ///< for pings that came
  bool left = false;        ///< the peer ended the job in order; nothing follows

 private:
  bool moves_bytes();
  void check_frame(Clock::time_point now, std::chrono::nanoseconds timeout) const;

  const int rank_;
  const std::string name_;
  Socket socket_;
  FrameDecoder decoder_;
  RecyclingQueue<Frame> arrived_;  ///< decoded, not looked at
  RecyclingQueue<Frame> rounds_;   ///< kRound and kJoin frames in order of arrival
  Clock::time_point heard_ = Clock::now();
  Clock::time_point asked_{};        ///< when an unanswered ping was sent, or zero
  Clock::time_point begun_{};        ///< when the frame began that is not complete, or zero
  Bytes outbox_;                     ///< encoded frames, each to be sent to its end before the next
  std::size_t out_ = 0;              ///< bytes of `outbox_` that the connection has taken
  std::uint64_t taken_ = 0;          ///< the same, of all frames so far
  std::uint64_t arrived_there_ = 0;  ///< of these, when last looked at
};

}  // namespace aiacc
