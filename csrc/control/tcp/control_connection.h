#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/recycling_queue.h"
#include "csrc/base/socket.h"
#include "csrc/control/round.h"
#include "csrc/control/tcp/frame.h"

namespace aiacc {

/// A connection of the control mesh: frames on their way in both directions. Knows nothing of the
/// others.
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
  /// Forgets what has not been sent.
  void clear_outbox() noexcept;
  bool flushed() const { return unsent() == 0; }
  std::size_t unsent() const { return outbox_.size() - out_; }

  /// Takes in what has come, not all of it if that is much; whether it was anything. Throws
  /// Error(kPeerLost) if the connection has ended or what came is garbage, save after the reason
  /// for an end.
  bool receive_some(std::vector<std::uint8_t>& buffer);
  /// Why the peer has ended the job, if it has; nothing follows.
  const std::optional<Status>& end() const { return end_; }
  bool has_round(std::uint32_t round) const;
  /// Those of what it has of this round, see `flags_of`.
  std::uint32_t round_flags(std::uint32_t round) const;
  bool has_rounds() const { return !rounds_.empty(); }
  /// Moves the share of this stage to `payload` if it has come.
  bool take_round(std::uint32_t round, std::uint8_t stage, Bytes& payload);

  /// Throws Error(kPeerLost) if a frame has begun and does not come to its end within `timeout`.
  /// `absent`: nobody has looked for long, so that it counts from now.
  void check_frame(Clock::time_point now, bool absent, std::chrono::nanoseconds timeout);

  bool wants_room = false;  ///< whether the poller tells when the connection takes more

 private:
  const int rank_;
  const std::string name_;
  Socket socket_;
  FrameDecoder decoder_;
  Frame next_;                    ///< scratch
  RecyclingQueue<Frame> rounds_;  ///< kRound and kJoin frames in order of arrival
  std::optional<Status> end_;
  Clock::time_point begun_{};  ///< when the frame began that is not complete, if there is one
  Bytes outbox_;               ///< encoded frames, each to be sent to its end before the next
  std::size_t out_ = 0;        ///< bytes of `outbox_` that the connection has taken
};

}  // namespace aiacc
