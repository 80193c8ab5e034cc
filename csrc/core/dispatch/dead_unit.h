#pragma once

#include <optional>
#include <string>

#include "csrc/core/negotiation/message.h"
#include "csrc/core/negotiation/process_set_table.h"

namespace aiacc {

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
/// The limit must be longer than a rank may be stopped, and than TCP takes to go on after that.
std::optional<std::string> dead_unit(const Answers& answers,
                                     const ProcessSetTable& sets,
                                     double limit_s);

}  // namespace aiacc
