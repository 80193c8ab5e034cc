// What a round may not say. Looked at before anything is made of it.

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "csrc/core/negotiation/negotiator.h"
#include "csrc/core/negotiation/request_checks.h"
#include "csrc/core/negotiation/request_matching.h"

namespace aiacc {
namespace {

/// Only its members form a process set.
std::string outsider_problem(const Request& request, const RankSet& senders) {
  const std::vector<std::int64_t>& ranks = request.numbers;
  bool outside = false;
  senders.for_each([&](int rank) {
    outside = outside || !std::binary_search(ranks.begin(), ranks.end(), rank);
  });
  return outside ? "ranks " + shape_text(ranks) + " (expected the sender's among them)" : "";
}

}  // namespace

/// Runs before anything else that reads requests: sizes of memory follow from them.
void Negotiator::check_requests(const RoundMessage& message) const {
  const auto size = static_cast<int>(sets_.members(0)->size());
  for (const SharedRequest& shared : message.requests) {
    const Request& request = shared.request;
    const std::vector<int>* members = sets_.members(request.process_set);
    std::string problem;
    if (shared.senders->last() >= size) {
      problem = "a job of " + std::to_string(size) + " ranks";
    } else if (members != nullptr) {  // else the set was removed while this was on its way
      problem = common_problem(request, *members);
      for (const Senders::Share& share : shared.senders->shares) {
        if (problem.empty()) {
          problem = part_problem(request, share.part, *members);
        }
      }
    }
    if (problem.empty() && request.kind == OpKind::kFormProcessSet) {
      problem = outsider_problem(request, shared.senders->ranks());
    }
    if (!problem.empty()) {
      throw Error(Code::kPeerLost,
                  "[negotiation] rank " + std::to_string(shared.senders->first()) + " sent " +
                      operation_text(request.kind, request.process_set, request.name) + " with " +
                      problem + "; no rank submits that: do all run the same aiacc version?");
    }
  }
}

/// What the message says in the name of this rank, by whichever way it came back, is what this rank
/// has said: its own buffers are as large as that.
void Negotiator::check_own_requests(const RoundMessage& message) const {
  std::unordered_map<std::string_view, const Request*> offered;
  for (const auto& [local, key] : offered_) {
    if (!message.cut || key < *message.cut) {
      offered.emplace(key, local.request);
    }
  }
  bool equal = true;
  for (const SharedRequest& shared : message.requests) {
    if (const OwnPart* part = shared.senders->part_of(rank_)) {
      const auto found = offered.find(shared.key);
      equal = equal && found != offered.end() && own_part(*found->second) == *part &&
              offered.erase(shared.key) == 1;
    }
  }
  if (!equal || !offered.empty()) {
    throw Error(Code::kPeerLost,
                "[negotiation] the round says what rank " + std::to_string(rank_) +
                    " has not submitted, or lacks what it has; do all ranks run the same aiacc "
                    "version?");
  }
}

}  // namespace aiacc
