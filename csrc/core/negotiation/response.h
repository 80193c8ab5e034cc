#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/core/negotiation/message.h"
#include "csrc/core/negotiation/request_matching.h"
#include "csrc/planning/device_placement.h"

namespace aiacc {

/// Each member's own part of its request; null for one that has sent none.
using MemberParts = std::vector<const OwnPart*>;
MemberParts parts_of(const std::vector<SharedRequest>& requests, const std::vector<int>& members);

/// What follows from requests that fit together, for member `member`: appends to `rows` the numbers
/// of rows that it gets from every member, and sets `value` to those that all send together
/// (all-to-all). `first`: the request of the lowest rank. Pure.
void add_rows(const Request& first,
              const MemberParts& parts,
              int member,
              std::vector<std::int64_t>& rows,
              std::int64_t& value);

/// The GPUs that the members' requests are about; null if they are about host memory. Pure. That is
/// `known` itself if it is equal: most tensors of a job are placed alike, for many ranks.
SharedPlacement placement_of(const MemberParts& parts, const SharedPlacement& known);

/// Why requests fail that need no disagreement for it. Each rank is told of its own request.

/// `rank` has joined and cannot take part in this.
Status joined_status(const Request& request, int rank);
/// `rank` has left the process set of the request.
Status left_status(const Request& request, int rank);
/// The process set of the request was removed before all members had submitted it.
Status removed_set_status(const Request& request);
/// The ranks of the request are those of process set `existing` already.
Status existing_set_status(const Request& request, std::uint32_t existing);

}  // namespace aiacc
