#include "csrc/engines/tcp/link_judge.h"

#include <chrono>

namespace aiacc {
namespace {

/// The part of the limit that an answer may take.
constexpr double kAnswer = 1.0 / 8;

}  // namespace

bool LinkJudge::is_dead(const TcpLink& link, Clock::time_point now) {
  const bool mute = link.probes >= kProbes && link.silent_s >= limit_s_;
  return is_stuck(link, now) || mute;
}

bool LinkJudge::is_stuck(const TcpLink& link, Clock::time_point now) {
  if (link.unacknowledged == 0 || link.acknowledged != acknowledged_ ||
      since_ == Clock::time_point{}) {
    acknowledged_ = link.acknowledged;
    since_ = now;
  }
  if (link.unacknowledged == 0 || link.repeats < kRepeats) {
    return false;
  }
  if (link.tells_window) {
    const double stuck_s = std::chrono::duration<double>(now - since_).count();
    return link.window > 0 && (stuck_s >= limit_s_ || link.silent_s >= limit_s_);
  }
  // A full window may be the reason. Then what was repeated last has been answered.
  return link.silent_s >= limit_s_ && link.sent_s >= kAnswer * limit_s_ &&
         link.silent_s >= link.sent_s + kAnswer * limit_s_;
}

}  // namespace aiacc
