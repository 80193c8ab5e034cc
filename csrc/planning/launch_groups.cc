#include "csrc/planning/launch_groups.h"

#include "csrc/base/error.h"
#include "csrc/planning/parameters.h"

namespace aiacc {

void plan_launch_groups(const std::vector<LaunchSlot>& units, std::vector<bool>& joined) {
  joined.assign(units.size(), false);
  std::uint64_t taken = 0;  // lanes of the group, a bit for each
  static_assert(kMaxLanes <= 64);
  for (std::size_t i = 0; i < units.size(); ++i) {
    AIACC_CHECK(units[i].lane < kMaxLanes);
    const std::uint64_t lane = std::uint64_t{1} << units[i].lane;
    const bool joins = i > 0 && units[i].engine == units[i - 1].engine && (taken & lane) == 0;
    if (joins) {
      joined[i - 1] = true;
    } else {
      taken = 0;
    }
    taken |= lane;
  }
}

}  // namespace aiacc
