// What all ranks decide, alike, when the requests of a round are in.

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "csrc/core/negotiator.h"
#include "csrc/core/verdicts.h"

namespace aiacc {

/// Only when all requests of the round are in: what lost its slot comes again from all its ranks at
/// once, and is complete only with all of them.
void Negotiator::settle_all(RoundOutcome& outcome) {
  // In the order in which they became complete: what a rank submitted before it removed a process set
  // comes before that.
  std::vector<Key> order;
  std::set<Key> seen;
  for (auto touched = touched_.rbegin(); touched != touched_.rend(); ++touched) {
    if (seen.insert(*touched).second) {
      order.push_back(*touched);
    }
  }
  std::reverse(order.begin(), order.end());
  touched_.clear();
  for (auto waiting = waiting_.begin(); join_came_ && waiting != waiting_.end(); ++waiting) {
    if (seen.count(waiting->first) == 0) {
      order.push_back(waiting->first);
    }
  }
  for (const Key& key : order) {
    settle(key, outcome);
  }
  if (std::exchange(join_came_, false)) {
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
  const std::vector<int>& members = *sets_.members(key.first);
  const Waiting& waiting = found->second;
  if (waiting.count < members.size()) {
    bool all_joined = true;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (waiting.by_member[i]) {
        continue;
      }
      if (!joined_.has(members[i])) {
        all_joined = false;
        continue;
      }
      for (const auto& request : waiting.by_member) {
        if (request && !joinable(*request)) {
          const Status status = joined_status(*request, members[i]);
          waiting_.erase(found);
          ++decisions_;
          fail(key, status, outcome);
          return;
        }
      }
    }
    if (!all_joined) {
      return;
    }
  }
  const Waiting complete = std::move(found->second);
  waiting_.erase(found);
  conclude(key, complete, outcome);
}

void Negotiator::conclude(const Key& key, const Waiting& waiting, RoundOutcome& outcome) {
  ++decisions_;
  const std::vector<int>& members = *sets_.members(key.first);
  const int member = index_in(members, rank_);
  std::vector<Request> requests;
  std::vector<int> ranks;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (waiting.by_member[i]) {
      requests.push_back(*waiting.by_member[i]);
      ranks.push_back(members[i]);
    }
  }
  const Request& first = requests.front();
  Agreement agreement;
  agreement.status = validate(requests, ranks);
  agreement.devices = placement_of(waiting.by_member);
  bool uniform = true;
  if (agreement.status.ok()) {
    uniform = add_rows(requests, member, agreement.first_extents, agreement.value);
    if (first.kind == OpKind::kAddProcessSet || first.kind == OpKind::kRemoveProcessSet) {
      decide_on_sets(first, agreement, outcome);
    }
  }
  if (agreement.status.ok() && uniform && first.cacheable && !blocked_by_join(first)) {
    give_slot(first, agreement.devices);
  }
  if (member < 0) {
    return;
  }
  if (const auto ticket = take_ticket(key)) {
    agreement.ticket = *ticket;
  } else {
    AIACC_CHECK(joined_.has(rank_));
    if (!agreement.status.ok()) {
      return;
    }
    agreement.zeros = std::make_shared<Request>(first);
  }
  outcome.ready.push_back(std::move(agreement));
}

void Negotiator::finish_join(RoundOutcome& outcome) {
  ++decisions_;
  AIACC_CHECK(join_.has_value());
  Agreement agreement;
  agreement.ticket = std::exchange(join_, std::nullopt)->ticket;
  agreement.value = joined_.last();
  joined_.clear();
  outcome.ready.push_back(std::move(agreement));
}

void Negotiator::decide_on_sets(const Request& request,
                                Agreement& agreement,
                                RoundOutcome& outcome) {
  if (request.kind == OpKind::kRemoveProcessSet) {
    const auto id = static_cast<std::uint32_t>(request.numbers.front());
    agreement.value = id != 0 && sets_.members(id) != nullptr ? 1 : 0;
    if (agreement.value != 0) {
      remove_set(id, outcome);
    }
    return;
  }
  const std::vector<int> ranks(request.numbers.begin(), request.numbers.end());
  if (const auto existing = sets_.find(ranks)) {
    agreement.status = existing_set_status(request, *existing);
    return;
  }
  agreement.value = sets_.add(ranks);
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
    Status status;
    for (const auto& request : found->second.by_member) {
      if (request) {
        status = removed_set_status(*request);
      }
    }
    waiting_.erase(found);
    fail(key, status, outcome);
  }
  sets_.remove(id);
}

/// Fails this rank's submission of that name, if it has one.
void Negotiator::fail(const Key& key, const Status& status, RoundOutcome& outcome) {
  if (const auto ticket = take_ticket(key)) {
    Agreement agreement;
    agreement.ticket = *ticket;
    agreement.status = status;
    outcome.ready.push_back(std::move(agreement));
  }
}

void Negotiator::fail_automatic_names(RoundOutcome& outcome) {
  std::map<Key, std::vector<int>> ranks;  // who waits for what
  for (const auto& [key, waiting] : waiting_) {
    const std::vector<int>& members = *sets_.members(key.first);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (waiting.by_member[i] && !waiting.by_member[i]->cacheable) {
        ranks[key].push_back(members[i]);
      }
    }
  }
  std::vector<std::pair<std::string, std::vector<int>>> names;
  names.reserve(ranks.size());
  for (const auto& [key, list] : ranks) {
    names.emplace_back(label_of(key.first, key.second), list);
  }
  const Status status = stuck_status(names);
  for (const auto& [key, list] : ranks) {
    waiting_.erase(key);
    fail(key, status, outcome);
  }
}

}  // namespace aiacc
