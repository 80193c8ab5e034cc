#pragma once

#include <string>
#include <vector>

#include "csrc/core/negotiation/request.h"
#include "csrc/core/negotiation/request_codec.h"

namespace aiacc {

/// What needs no other rank to be known as wrong. Pure.
///
/// What the other ranks could not decode, or the engine not do, must not leave this rank: there it
/// would end the job. `members` are the ranks of the request's process set, ascending.
/// Throws Error(kInvalidArgument), or Error(kUnsupported) for a number of ranks.
void check_request(const Request& request, const std::vector<int>& members);

/// The same of what another rank has sent, in text: "" if a rank of `members` can have submitted it.
/// `common` is what decode_common returns, `part` one of its senders' own. Pure.
std::string common_problem(const Request& common, const std::vector<int>& members);
std::string part_problem(const Request& common,
                         const OwnPart& part,
                         const std::vector<int>& members);

/// Sorts `ranks`. Throws Error(kInvalidArgument) unless a process set can consist of them.
void check_ranks(std::vector<int>& ranks, int size);

}  // namespace aiacc
