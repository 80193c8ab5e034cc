#pragma once

#include <vector>

#include "csrc/core/request.h"

namespace aiacc {

/// What needs no other rank to be known as wrong. Pure.
///
/// What the other ranks could not decode, or the engine not do, must not leave this rank: there it
/// would end the job. `members` are the ranks of the request's process set, ascending.
/// Throws Error(kInvalidArgument), or Error(kUnsupported) for a number of ranks.
void check_request(const Request& request, const std::vector<int>& members);

/// Sorts `ranks`. Throws Error(kInvalidArgument) unless a process set can consist of them.
void check_ranks(std::vector<int>& ranks, int size);

}  // namespace aiacc
