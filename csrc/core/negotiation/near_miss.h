#pragma once

#include <string>
#include <vector>

#include "csrc/core/negotiation/message.h"

namespace aiacc {

/// The front-ends call the all-reduce of "x" "allreduce.x", so that there can be an all-gather of
/// "x" besides. Finds operations whose names differ only in that prefix and that different ranks
/// wait for: most likely they were meant to be the same.
struct NearMiss {
  std::string name;                     ///< "x", or "x (process set 3)"
  std::vector<PendingName> operations;  ///< by label, ascending
};

/// By name, ascending. Not of automatic names, which count the calls of each kind. Pure.
std::vector<NearMiss> near_misses(const Answers& answers);

}  // namespace aiacc
