// What all ranks decide, alike, when the requests of a round are in.

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "csrc/core/negotiation/negotiator.h"
#include "csrc/core/negotiation/response.h"

namespace aiacc {

/// Only when all requests of the round are in: what lost its slot comes again from all its ranks at
/// once, and is complete only with all of them.
void Negotiator::settle_all(RoundOutcome& outcome) {
  // In the order in which they became complete: what a rank submitted before it removed a process
  // set comes before that.
  std::vector<Key> order;
  std::set<Key> seen;
  for (auto touched = touched_.rbegin(); touched != touched_.rend(); ++touched) {
    if (seen.insert(*touched).second) {
      order.push_back(*touched);
    }
  }
  std::reverse(order.begin(), order.end());
  touched_.clear();
  for (auto waiting = waiting_.begin(); absence_came_ && waiting != waiting_.end(); ++waiting) {
    if (seen.count(waiting->first) == 0) {
      order.push_back(waiting->first);
    }
  }
  for (const Key& key : order) {
    settle(key, outcome);
  }
  if (std::exchange(absence_came_, false)) {
    if (joined_.all()) {
      finish_join(outcome);
    } else if (joined_.has(rank_)) {
      news_ = true;  // the bits that this rank sets from now on
    }
  }
}

void Negotiator::settle(const Key& key, RoundOutcome& outcome) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) {
    return;  // its process set was removed in this very round
  }
  const Waiting& waiting = found->second;
  const std::vector<int>& members = members_of(key, waiting);
  if (waiting.arrived.count() < members.size()) {
    const auto left = leaving_.find(key.first);
    // Who has joined, or has left the set, is not waited for.
    const auto is_absent = [&](int rank) {
      return joined_.has(rank) || (left != leaving_.end() && left->second.has(rank));
    };
    const auto missing = std::find_if(members.begin(), members.end(), [&](int rank) {
      return !waiting.arrived.has(rank) && !is_absent(rank);
    });
    const auto absent = std::find_if(members.begin(), members.end(), [&](int rank) {
      return !waiting.arrived.has(rank) && is_absent(rank);
    });
    if (absent != members.end()) {
      for (const SharedRequest& shared : waiting.requests) {
        if (!joinable(shared.request)) {
          const Status status = joined_.has(*absent) ? joined_status(shared.request, *absent)
                                                     : left_status(shared.request, *absent);
          waiting_.erase(found);
          fail(key, status, outcome);
          return;
        }
      }
    }
    if (missing != members.end()) {
      return;
    }
  }
  const Waiting complete = std::move(found->second);
  waiting_.erase(found);
  conclude(key, complete, outcome);
}

void Negotiator::conclude(const Key& key, const Waiting& waiting, RoundOutcome& outcome) {
  const std::vector<int>& members = members_of(key, waiting);
  const int member = index_in(members, rank_);
  // Of those that differ the one of the lowest rank, in the order of these ranks.
  std::vector<std::pair<int, const SharedRequest*>> distinct;
  distinct.reserve(waiting.requests.size());
  for (const SharedRequest& shared : waiting.requests) {
    distinct.emplace_back(shared.senders->first(), &shared);
  }
  std::sort(distinct.begin(), distinct.end());
  std::vector<Request> requests;
  std::vector<int> ranks;
  for (const auto& [rank, shared] : distinct) {
    requests.push_back(shared->of(rank));
    ranks.push_back(rank);
  }
  const Request& first = requests.front();
  Response response;
  response.status = validate(requests, ranks);
  response.joined = joined_.any() && joinable(first);
  bool uniform = true;
  if (response.status.ok()) {
    const auto parts = parts_of(waiting.requests, members);
    if (first.on_gpu()) {
      placement_ = placement_of(parts, placement_);
      response.devices = placement_;
    }
    uniform = add_rows(first, parts, member, response.first_extents, response.value);
    if (changes_sets(first.kind)) {
      decide_on_sets(first, response, outcome);
    }
  }
  if (response.status.ok() && uniform && first.cacheable && !never_again(first)) {
    give_slot(first, response.devices);
  }
  if (const auto ticket = take_ticket(key)) {
    response.ticket = *ticket;
  } else if (member < 0) {
    return;
  } else {
    AIACC_CHECK(joined_.has(rank_));
    if (!response.status.ok()) {
      return;
    }
    response.zeros = std::make_shared<Request>(first);
  }
  outcome.ready.push_back(std::move(response));
}

void Negotiator::finish_join(RoundOutcome& outcome) {
  AIACC_CHECK(join_.has_value());
  Response response;
  response.ticket = std::exchange(join_, std::nullopt)->ticket;
  response.value = joined_.last();
  joined_.clear();
  outcome.ready.push_back(std::move(response));
}

void Negotiator::decide_on_sets(const Request& request, Response& response, RoundOutcome& outcome) {
  if (!adds_set(request.kind)) {
    const auto id = set_to_remove(request);
    response.value = id != 0 && sets_.members(id) != nullptr ? 1 : 0;
    if (response.value != 0) {
      remove_set(id, outcome);
    }
    return;
  }
  const std::vector<int> ranks(request.numbers.begin(), request.numbers.end());
  if (request.kind == OpKind::kFormProcessSet) {
    response.value = sets_.form(ranks);
    return;
  }
  if (const auto existing = sets_.find(ranks)) {
    response.status = existing_set_status(request, *existing);
    return;
  }
  response.value = sets_.add(ranks);
}

void Negotiator::remove_set(std::uint32_t id, RoundOutcome& outcome) {
  for (const ResponseCache::Slot slot :
       cache_.select([&](const Request& cached) { return cached.process_set == id; })) {
    free_slot(slot);  // Whoever had set its bit sends a request, and is told.
  }
  std::vector<Key> keys;
  for (auto at = waiting_.lower_bound({id, ""}); at != waiting_.end() && at->first.first == id;
       ++at) {
    keys.push_back(at->first);
  }
  for (const Key& key : keys) {
    const auto found = waiting_.find(key);
    const Status status = removed_set_status(found->second.requests.front().request);
    waiting_.erase(found);
    fail(key, status, outcome);
  }
  sets_.remove(id);
  leaving_.erase(id);
}

/// Fails this rank's submission of that name, if it has one.
void Negotiator::fail(const Key& key, const Status& status, RoundOutcome& outcome) {
  if (const auto ticket = take_ticket(key)) {
    Response response;
    response.ticket = *ticket;
    response.status = status;
    outcome.ready.push_back(std::move(response));
  }
}

}  // namespace aiacc
