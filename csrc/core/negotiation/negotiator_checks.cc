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

/// The lowest of the senders who is not among the members of the process set that it forms, or -1.
int outsider(const Request& request, const RankSet& senders) {
  const std::vector<std::int64_t>& ranks = request.numbers;
  int outside = -1;
  senders.for_each([&](int rank) {
    if (outside < 0 && !std::binary_search(ranks.begin(), ranks.end(), rank)) {
      outside = rank;
    }
  });
  return outside;
}

}  // namespace

void refuse(const Request& request, int rank, const std::string& problem) {
  throw Error(Code::kPeerLost,
              "[negotiation] rank " + std::to_string(rank) + " sent " + operation_text(request) +
                  " with " + problem +
                  "; no rank submits that: do all run the same aiacc version?");
}

/// Runs before anything else that reads requests: sizes of memory follow from them.
void Negotiator::check_requests(const RoundMessage& message) const {
  for (const auto* list : {&message.requests, &message.texts}) {
    for (const SharedRequest& shared : *list) {
      const Senders& senders = *shared.senders;
      const std::vector<int>* members = sets_.members(shared.id.process_set);
      if (shared.request == nullptr || members == nullptr) {
        continue;  // this rank has checked its own; and a set may go while a request is on its way
      }
      const Request& request = *shared.request;
      const std::string problem = common_problem(request, *members);
      if (!problem.empty()) {
        refuse(request, senders.first(), problem);
      }
      const int outside =
          request.kind == OpKind::kFormProcessSet ? outsider(request, senders.ranks()) : -1;
      if (outside >= 0) {
        refuse(request,
               outside,
               "ranks " + shape_text(request.numbers) + " (expected the sender's among them)");
      }
    }
  }
}

/// What the message says in the name of this rank, by whichever way it came back, is what this rank
/// has said: its own buffers are as large as that.
void Negotiator::check_own_requests(const RoundMessage& message) const {
  std::unordered_map<std::string_view, const Request*> offered;
  for (const Offer& offer : offered_) {
    if (!message.cut || offer.key < *message.cut) {
      offered.emplace(offer.key, &offer.submitted->request);
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
