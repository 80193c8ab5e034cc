#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/engines/engine_context.h"

namespace aiacc {

/// 0 .. size - 1
inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// What `table` has for each of `numbers`: the ranks that members stand for, the hosts of ranks.
inline std::vector<int> translated(const std::vector<int>& table, std::vector<int> numbers) {
  for (int& number : numbers) {
    number = table[static_cast<std::size_t>(number)];
  }
  return numbers;
}

/// The number that `rank` of `size` gets in an engine among `members`. Checks what Engine::split
/// demands of them: ascending ranks of this engine, this one among them.
inline int index_among(const std::vector<int>& members, int rank, int size) {
  AIACC_CHECK(!members.empty() && members.front() >= 0 && members.back() < size);
  AIACC_CHECK(std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) ==
              members.end());
  const auto found = std::lower_bound(members.begin(), members.end(), rank);
  AIACC_CHECK(found != members.end() && *found == rank);
  return static_cast<int>(found - members.begin());
}

/// `context` as if `ranks` of it, ascending, were all there are.
inline EngineContext context_among(EngineContext context, const std::vector<int>& ranks) {
  context.rank = index_among(ranks, context.rank, context.size);
  context.size = static_cast<int>(ranks.size());
  context.host_of = translated(context.host_of, ranks);
  return context;
}

}  // namespace aiacc
