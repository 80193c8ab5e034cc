#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "csrc/base/error.h"

namespace aiacc {

/// The number that `rank` of `size` gets in an engine among `members`. Checks what Engine::split
/// demands of them: ascending ranks of this engine, this one among them.
inline int place_among(const std::vector<int>& members, int rank, int size) {
  AIACC_CHECK(!members.empty() && members.front() >= 0 && members.back() < size);
  AIACC_CHECK(std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) ==
              members.end());
  const auto place = std::lower_bound(members.begin(), members.end(), rank);
  AIACC_CHECK(place != members.end() && *place == rank);
  return static_cast<int>(place - members.begin());
}

}  // namespace aiacc
