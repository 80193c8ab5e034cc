// What all ranks decide, alike, when the requests of a round are in.

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "csrc/core/negotiation/negotiator.h"
#include "csrc/core/negotiation/request_checks.h"
#include "csrc/core/negotiation/request_matching.h"
#include "csrc/core/negotiation/response.h"

namespace aiacc {
namespace {

/// Whether every rank has as many rows, so that the same requests have the same outcome again.
bool equal_rows(const std::vector<SharedRequest>& requests) {
  const std::vector<std::int64_t>& rows = requests.front().senders->shares.front().part.numbers;
  return std::all_of(requests.begin(), requests.end(), [&](const SharedRequest& shared) {
    const std::vector<Senders::Share>& shares = shared.senders->shares;
    return std::all_of(shares.begin(), shares.end(), [&](const Senders::Share& share) {
      return share.part.numbers == rows;
    });
  });
}

}  // namespace

/// From now on all ranks know the request.
void Negotiator::take_text(const SharedRequest& text) {
  const Key key{text.id.process_set, text.id.name};
  const auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) {
    return;  // its process set was removed meanwhile
  }
  for (SharedRequest& shared : waiting->second.requests) {
    if (shared.id == text.id) {
      shared.request = text.request;
      shared.told = true;
      touched_.push_back(key);
    }
  }
}

void Negotiator::take_join(int rank) {
  joined_.join(rank);
  absence_came_ = true;
  // Nothing that this rank has to take part in itself may wait for its bit any more.
  for (const ResponseCache::Slot slot : cache_.select([&](const Request& cached) {
         return !joinable(cached) && sets_.index_of(cached.process_set, rank) >= 0;
       })) {
    free_slot(slot);
  }
}

/// Nothing in the set may wait for these ranks' bits any more.
void Negotiator::take_leave(std::uint32_t id, const RankSet& ranks) {
  leaving_[id].add(ranks);
  absence_came_ = true;
  for (const ResponseCache::Slot slot :
       cache_.select([&](const Request& cached) { return cached.process_set == id; })) {
    free_slot(slot);
  }
}

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
  const bool absence_came = std::exchange(absence_came_, false);
  // What waits for a text was submitted before its ranks joined.
  if (joined_.all() && std::none_of(waiting_.begin(), waiting_.end(), [](const auto& waiting) {
        return waiting.second.asked > 0;
      })) {
    finish_join(outcome);
  } else if (absence_came && joined_.has(rank_)) {
    news_ = true;  // the bits that this rank sets from now on
  }
}

void Negotiator::settle(const Key& key, RoundOutcome& outcome) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) {
    return;  // its process set was removed in this very round
  }
  Waiting& waiting = found->second;
  const std::vector<int>& members = members_of(key, waiting);
  const bool some_absent = waiting.arrived.count() < members.size();
  if (some_absent) {
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
        if (!shared.id.joinable) {
          const auto why = joined_.has(*absent) ? &joined_status : &left_status;
          const int rank = *absent;
          waiting_.erase(found);
          fail(key, [&](const Request& mine) { return why(mine, rank); }, outcome);
          return;
        }
      }
    }
    if (missing != members.end()) {
      return;
    }
  }
  check_parts(waiting, some_absent);
  if (!knows_enough(waiting, some_absent)) {
    return;
  }
  const Waiting complete = std::move(found->second);
  waiting_.erase(found);
  conclude(key, complete, outcome);
}

/// Whether all ranks know the requests that it takes to decide: of requests that differ the first
/// two, and what ranks that have joined give zeros for. What they do not is asked for.
bool Negotiator::knows_enough(Waiting& waiting, bool some_absent) {
  std::vector<SharedRequest>& requests = waiting.requests;
  std::sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) {
    return a.senders->first() < b.senders->first();
  });
  if (requests.size() == 1 && !some_absent) {
    return true;
  }
  std::size_t told = 0;
  while (told < requests.size() && requests[told].told) {
    const int first = requests.front().senders->first();
    const int other = requests[told].senders->first();
    if (!validate({requests.front().of(first), requests[told].of(other)}, {first, other}).ok()) {
      return true;
    }
    ++told;
  }
  for (; waiting.asked < std::min(requests.size(), told + 2); ++waiting.asked) {
    const SharedRequest& shared = requests[waiting.asked];
    if (!shared.told && shared.senders->first() == rank_) {
      owed_.push_back(shared.spelled_out(rank_));
      news_ = true;
    }
  }
  return told == requests.size();
}

/// Sizes of memory follow from the parts of others. All members come to this at the same time:
/// when all of them know the request.
void Negotiator::check_parts(const Waiting& waiting, bool some_absent) const {
  const bool all_know = waiting.requests.size() == 1 && !some_absent;
  for (const SharedRequest& shared : waiting.requests) {
    if (shared.request == nullptr || !(shared.told || all_know)) {
      continue;
    }
    const std::vector<int>& members = *sets_.members(shared.id.process_set);
    for (const Senders::Share& share : shared.senders->shares) {
      const std::string problem = part_problem(*shared.request, share.part, members);
      if (!problem.empty()) {
        refuse(*shared.request, share.ranks.first(), problem);
      }
    }
  }
}

void Negotiator::conclude(const Key& key, const Waiting& waiting, RoundOutcome& outcome) {
  const std::vector<int>& members = members_of(key, waiting);
  const int member = index_in(members, rank_);
  const SharedRequest& first = waiting.requests.front();
  std::vector<Request> requests;
  std::vector<int> ranks;
  for (const SharedRequest& shared : waiting.requests) {
    if (shared.told) {
      ranks.push_back(shared.senders->first());
      requests.push_back(shared.of(ranks.back()));
    }
  }
  Response response;
  response.status = requests.empty() ? Status() : validate(requests, ranks);
  response.joined = joined_.any() && first.id.joinable;
  if (response.status.ok()) {
    const auto parts = parts_of(waiting.requests, members);
    response.devices = placement_of(parts, placement_);
    if (response.devices != nullptr) {
      placement_ = response.devices;
    }
    if (member >= 0) {
      add_rows(*first.request, parts, member, response.first_extents, response.value);
    }
    if (first.request != nullptr && changes_sets(first.request->kind)) {
      decide_on_sets(*first.request, response, outcome);
    }
  }
  if (response.status.ok() && first.id.cacheable && !never_again(first.id) &&
      equal_rows(waiting.requests)) {
    give_slot(first, response.devices);
  }
  response.submitted = take_own(key);
  if (response.submitted == nullptr) {
    AIACC_CHECK(member < 0 || joined_.has(rank_));
    if (member < 0 || !response.status.ok()) {
      return;
    }
    response.zeros = std::make_shared<Request>(*first.request);
  }
  outcome.ready.push_back(std::move(response));
}

void Negotiator::finish_join(RoundOutcome& outcome) {
  AIACC_CHECK(join_ != nullptr);
  Response response;
  response.submitted = std::exchange(join_, nullptr);
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
  for (auto at = waiting_.lower_bound({id, {}}); at != waiting_.end() && at->first.first == id;
       ++at) {
    keys.push_back(at->first);
  }
  for (const Key& key : keys) {
    waiting_.erase(key);
    fail(key, removed_set_status, outcome);
  }
  sets_.remove(id);
  leaving_.erase(id);
}

/// Fails this rank's submission of that name, if it has one.
void Negotiator::fail(const Key& key, const Reason& reason, RoundOutcome& outcome) {
  if (Submitted* own = take_own(key)) {
    Response response;
    response.submitted = own;
    response.status = reason(own->request);
    outcome.ready.push_back(std::move(response));
  }
}

}  // namespace aiacc
