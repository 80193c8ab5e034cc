#pragma once

#include <cstdint>

#include "csrc/base/event.h"
#include "csrc/base/tcp_info.h"

namespace aiacc {

/// Distinguishes a dead link from a busy peer.
///
/// A rank that does not read is no dead link: its kernel goes on answering, with a window of zero.
/// Dead is a link on which, for the limit,
///  * bytes stay unacknowledged, however often they are sent again, although there is room for
///    them; or
///  * nothing at all comes, however often the kernel asks.
/// So the frozen and the busy are left to those who ask the rank itself: the control plane's pings.
/// Pure; for one connection, of which it is shown the state now and then by whoever waits for it.
class LinkJudge {
 public:
  /// So often, at least, TCP must have asked in vain. A loss in a hundred must not end a job.
  static constexpr int kRepeats = 3;
  static constexpr int kProbes = 5;

  explicit LinkJudge(double limit_s) : limit_s_(limit_s) {}

  bool is_dead(const TcpLink& link, Clock::time_point now);
  double limit_s() const { return limit_s_; }

 private:
  bool is_stuck(const TcpLink& link, Clock::time_point now);

  double limit_s_;
  std::uint64_t acknowledged_ = 0;
  Clock::time_point since_{};  ///< `acknowledged_` was seen first, or zero
};

}  // namespace aiacc
