#pragma once

#include <string>
#include <vector>

#include "csrc/core/negotiation/message.h"

namespace aiacc {

/// The front-ends call the all-reduce of "x" "allreduce.x", so that there can be an all-gather of "x"
/// besides. Operations that differ in nothing but that, each with a rank that has submitted it and
/// not the other: most likely they were meant to be one.
struct NearMiss {
  std::string name;                     ///< "x", or "x (process set 3)"
  std::vector<PendingName> operations;  ///< by label, ascending
};

/// By name, ascending. Not of automatic names, which count the calls of each kind. Pure.
std::vector<NearMiss> near_misses(const Answers& answers);

}  // namespace aiacc
