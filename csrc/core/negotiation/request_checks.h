#pragma once

#include <string>
#include <vector>

#include "csrc/core/negotiation/request.h"
#include "csrc/core/negotiation/request_codec.h"

namespace aiacc {

/// Validates a request locally: rejected here it fails one call, sent it would abort the job. Pure.
///
/// Rejects what other ranks could not decode, or the engine could not perform. `members` are the
/// ranks of the request's process set, ascending. Throws Error(kInvalidArgument), or
/// Error(kUnsupported) for a number of ranks.
void check_request(const Request& request, const std::vector<int>& members);

/// Validates what another rank has sent; returns the problem as text: "" if a rank of `members` can
/// have submitted it. `common` is what request_of returns, `part` one of its senders' own. Pure.
std::string common_problem(const Request& common, const std::vector<int>& members);
std::string part_problem(const Request& common,
                         const OwnPart& part,
                         const std::vector<int>& members);

/// Throws Error(kPeerLost) for what a rank has sent.
[[noreturn]] void refuse(const Request& request, int rank, const std::string& problem);

/// The same as `check_request` for a message among `size` ranks with this key.
void check_message(const Request& request, const std::string& key, int size);

/// Sorts `ranks`. Throws Error(kInvalidArgument) unless a process set can consist of them.
void check_ranks(std::vector<int>& ranks, int size);

}  // namespace aiacc
