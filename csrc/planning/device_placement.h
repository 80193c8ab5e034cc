#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace aiacc {

/// Which GPU every member of a process set uses for an operation, by its number on that rank. -1:
/// the member has joined, so it has no tensor to tell one and takes any.
using DevicePlacement = std::vector<std::int32_t>;
using SharedPlacement = std::shared_ptr<const DevicePlacement>;

/// Whether two operations use the same GPUs; null: none.
inline bool same_placement(const SharedPlacement& a, const SharedPlacement& b) {
  return a == b || (a != nullptr && b != nullptr && *a == *b);
}

/// The index in `known` of the first placement that serves `wanted`, or known.size(): `wanted` is
/// new. Pure: equal on all members that have met the same placements in the same order.
std::size_t find_placement(const std::vector<DevicePlacement>& known,
                           const DevicePlacement& wanted);

}  // namespace aiacc
