#include "csrc/planning/device_placement.h"

#include <algorithm>

namespace aiacc {

std::size_t find_placement(const std::vector<DevicePlacement>& known,
                           const DevicePlacement& wanted) {
  const auto serves = [&](const DevicePlacement& placement) {
    return std::equal(
        placement.begin(),
        placement.end(),
        wanted.begin(),
        wanted.end(),
        [](std::int32_t device, std::int32_t wish) { return wish < 0 || wish == device; });
  };
  return static_cast<std::size_t>(std::find_if(known.begin(), known.end(), serves) - known.begin());
}

}  // namespace aiacc
