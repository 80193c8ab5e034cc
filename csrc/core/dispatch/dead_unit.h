#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "csrc/base/socket.h"
#include "csrc/core/negotiation/message.h"
#include "csrc/core/negotiation/process_set_table.h"

namespace aiacc {

/// A unit that seems dead.
struct DeadUnit {
  std::uint64_t order = 0;  ///< as in LaneReport
  std::uint32_t process_set = 0;
  std::uint64_t unit = 0;
  std::string text;  ///< for the user
};

/// Whether they are the same unit.
inline bool operator==(const DeadUnit& a, const DeadUnit& b) {
  return a.order == b.order && a.process_set == b.process_set && a.unit == b.unit;
}

/// Detects a unit that can never complete, from the lane states that all ranks report in one round.
/// Pure, and equal on all ranks.
///
/// Every rank answers pings, so nobody else notices ranks that disagree about a unit after it was
/// dispatched. A unit is dead when every member of its process set is in it and has waited for
/// others for `limit_s` without a byte that moved, as it says itself, or has nothing more to do
/// with it: its lane is idle, or in a unit that was agreed on later. A member that computes, moves
/// bytes or is in an earlier unit of that lane, for however long, keeps it alive. Of the units that
/// are not done all members of the first come to run it (see Dispatcher), so ranks that wait
/// crosswise are found as well.
///
/// Ranks do not look at their lanes at the same moment: the last member may come, and end the unit
/// here, after another one has looked and before it does itself. So one answer proves nothing: see
/// DeadUnitWatch.
///
/// The limit must be longer than a rank may be stopped, and than TCP takes to go on after that.
std::optional<DeadUnit> dead_unit(const Answers& answers,
                                  const ProcessSetTable& sets,
                                  double limit_s);

/// When a rank asks what the lanes of all are at, and what the answers prove: two in a row that say
/// that the same unit is dead, where all have looked for the second time after they have for the
/// first. In between lanes have time to be given a processor, and to see what has come.
///
/// Pure, but for what it remembers; what `proof` returns is equal on all ranks.
class DeadUnitWatch {
 public:
  explicit DeadUnitWatch(double limit_s) : limit_s_(limit_s) {}

  /// How long a lane here has waited for others when this rank asks: longer than its limit, so that
  /// the other members have most likely waited for so long, too.
  double ask_after_s() const { return 1.125 * limit_s_; }
  /// Whether to ask now, since some lane has waited for so long; remembers that it did.
  bool should_ask(Clock::time_point now);
  /// How long a lane must have waited to be reported as stuck. Nothing is stuck between two
  /// answers, since others may ask for reasons of their own.
  double limit_s(Clock::time_point now) const;
  /// Why the job has to end, if it has to, after an answer by which this unit seems dead, or none.
  std::optional<std::string> proof(std::optional<DeadUnit> dead, Clock::time_point now);

 private:
  const double limit_s_;
  Clock::time_point ask_at_{};    ///< not before
  Clock::time_point doubt_to_{};  ///< nothing is stuck until then
  std::optional<DeadUnit> suspect_;
};

}  // namespace aiacc
