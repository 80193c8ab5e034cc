#pragma once

#include <cstdint>
#include <vector>

namespace aiacc {

/// Where a unit of an engine for GPUs is issued.
struct LaunchSlot {
  std::uint32_t engine = 0;  ///< equal for units of one engine
  std::uint32_t lane = 0;  ///< of that engine, below kMaxLanes: what has a communicator of its own
};

/// Cuts the units of a plan, in their order, into groups that are issued by one call of the
/// library: `joined[i]` says whether unit i + 1 is in the group of unit i.
///
/// A group has one engine and at most one unit for each lane. So no unit waits for the tensors of
/// another one, as two of a communicator would; a lane packs one unit while another one is under
/// way; and what a communicator is given by one call is equal on all ranks, since it is one unit.
/// Pure.
void plan_launch_groups(const std::vector<LaunchSlot>& units, std::vector<bool>& joined);

}  // namespace aiacc
