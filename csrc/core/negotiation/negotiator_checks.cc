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

/// What no rank submits, and the one that has sent it.
struct Misdeed {
  std::string problem;  ///< "" for none
  int rank = -1;
};

Misdeed misdeed_of(const SharedRequest& shared, const std::vector<int>* members, int size) {
  const Request& request = shared.request;
  const Senders& senders = *shared.senders;
  if (senders.last() >= size) {
    return {"a job of " + std::to_string(size) + " ranks", senders.last()};
  }
  if (members != nullptr) {  // else the set was removed while this was on its way
    const std::string common = common_problem(request, *members);
    if (!common.empty()) {
      return {common, senders.first()};
    }
    for (const Senders::Share& share : senders.shares) {
      const std::string own = part_problem(request, share.part, *members);
      if (!own.empty()) {
        return {own, share.ranks.first()};
      }
    }
  }
  const int outside =
      request.kind == OpKind::kFormProcessSet ? outsider(request, senders.ranks()) : -1;
  return outside < 0 ? Misdeed()
                     : Misdeed{"ranks " + shape_text(request.numbers) +
                                   " (expected the sender's among them)",
                               outside};
}

}  // namespace

/// Runs before anything else that reads requests: sizes of memory follow from them.
void Negotiator::check_requests(const RoundMessage& message) const {
  const auto size = static_cast<int>(sets_.members(0)->size());
  for (const SharedRequest& shared : message.requests) {
    const Request& request = shared.request;
    const Misdeed misdeed = misdeed_of(shared, sets_.members(request.process_set), size);
    if (!misdeed.problem.empty()) {
      throw Error(Code::kPeerLost,
                  "[negotiation] rank " + std::to_string(misdeed.rank) + " sent " +
                      operation_text(request.kind, request.process_set, request.name) + " with " +
                      misdeed.problem +
                      "; no rank submits that: do all run the same aiacc version?");
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
