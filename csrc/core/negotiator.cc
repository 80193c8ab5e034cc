#include "csrc/core/negotiator.h"

#include <algorithm>
#include <utility>

#include "csrc/core/verdicts.h"

namespace aiacc {

Negotiator::Negotiator(int rank, int size, std::size_t cache_capacity, const Parameters& parameters)
    : rank_(rank), parameters_(parameters), cache_(cache_capacity), sets_(size), joined_(size) {}

void Negotiator::submit(const Request& request, std::uint64_t ticket) {
  ++submitted_;
  if (request.kind == OpKind::kJoin) {
    // A bit would not be told from the one that a joined rank sets anyway.
    bits_.for_each([&](std::size_t slot) { requeue(static_cast<ResponseCache::Slot>(slot)); });
  }
  const auto slot = cache_.find(request.process_set, request.name);
  if (slot && has_slot(request, *slot)) {
    bits_.set(*slot);
    by_slot_[*slot] = {&request, ticket};
    return;
  }
  fresh_.push_back({&request, ticket});
}

/// Whether what was agreed on is what this rank asks for again.
bool Negotiator::has_slot(const Request& request, ResponseCache::Slot slot) const {
  if (!same_signature(cache_.at(slot), request)) {
    return false;
  }
  const SharedPlacement& devices = cache_.devices(slot);
  if (devices == nullptr) {
    return true;
  }
  const auto member = static_cast<std::size_t>(sets_.index_of(request.process_set, rank_));
  return devices->at(member) == request.device;
}

void Negotiator::propose(const Parameters& parameters) {
  proposal_ = parameters;
  proposal_->epoch = parameters_.epoch + 1;
}

void Negotiator::contribute(Bytes& out, bool stuck, bool busy) {
  message_.flags = std::exchange(flags_, 0U) | (stuck ? 0U : kFlagMoving) | (busy ? kFlagBusy : 0U);
  message_.epoch = parameters_.epoch;
  message_.ready = bits_;
  message_.ready.merge(foreign_);
  if (joined_.has(rank_)) {
    message_.ready.merge(joinable_);
  }
  message_.reports.clear();
  if (!fresh_.empty() || answer_due_ || proposal_) {
    Report report;
    report.rank = rank_;
    report.has_pending = std::exchange(answer_due_, false);
    if (report.has_pending) {
      report.pending = pending_names();
    }
    for (const Local& local : fresh_) {
      const Request& request = *local.request;
      report.requests.push_back(request);
      if (request.kind == OpKind::kJoin) {
        join_ = local;
      } else {
        sent_[{request.process_set, request.name}] = local;
      }
    }
    fresh_.clear();
    if (proposal_) {
      report.proposals.push_back(*std::exchange(proposal_, std::nullopt));
    }
    message_.reports.push_back(std::move(report));
  }
  news_ = false;
  message_.encode(out);
}

const RoundOutcome& Negotiator::apply(const Bytes& combined) {
  RoundMessage& message = message_;
  message.decode(combined);
  RoundOutcome& outcome = outcome_;
  outcome.clear();
  outcome.flags = message.flags;
  answer_due_ = (message.flags & kFlagStallQuery) != 0;
  decisions_ = 0;
  apply_bits(message.ready, outcome);
  std::sort(message.reports.begin(), message.reports.end(), [](const auto& a, const auto& b) {
    return a.rank < b.rank;
  });
  std::vector<Parameters> proposals;
  const int size = static_cast<int>(sets_.members(0)->size());
  for (Report& report : message.reports) {
    if (report.rank < 0 || report.rank >= size) {
      throw Error(Code::kInternal,
                  "[negotiation] a report of rank " + std::to_string(report.rank) + " of " +
                      std::to_string(size));
    }
    for (Request& request : report.requests) {
      take_request(report.rank, std::move(request), outcome);
    }
    proposals.insert(proposals.end(), report.proposals.begin(), report.proposals.end());
    if (report.has_pending) {
      outcome.answers.push_back(std::move(report));
    }
  }
  message.reports.clear();  // With many ranks the requests of a first step are large.
  settle_all(outcome);
  if ((message.flags & kFlagMoving) == 0) {
    outcome.look_again = decisions_ > 0;
    if (decisions_ == 0) {
      fail_automatic_names(outcome);
    }
  }
  const Parameters next = next_parameters(parameters_, proposals);
  outcome.parameters_changed = next.epoch != parameters_.epoch;
  parameters_ = next;
  submitted_ -= static_cast<std::size_t>(
      std::count_if(outcome.ready.begin(), outcome.ready.end(), [](const Agreement& agreement) {
        return agreement.ticket != 0;
      }));
  return outcome;
}

void Negotiator::apply_bits(const BitVector& ready, RoundOutcome& outcome) {
  ready.for_each([&](std::size_t bit) {
    const auto slot = static_cast<ResponseCache::Slot>(bit);
    AIACC_CHECK(bit < by_slot_.size());
    ++decisions_;
    cache_.touch(slot);
    if (foreign_.test(slot)) {
      return;
    }
    Agreement agreement;
    const Request& request = cache_.at(slot);
    if (by_slot_[slot].request != nullptr) {
      agreement.ticket = std::exchange(by_slot_[slot], {}).ticket;
      bits_.clear(slot);
    } else {
      AIACC_CHECK(joined_.has(rank_) && joinable_.test(slot));
      agreement.zeros = std::make_shared<Request>(request);
    }
    agreement.devices = cache_.devices(slot);
    if (request.kind == OpKind::kAllgather) {
      const std::size_t members = sets_.members(request.process_set)->size();
      for (std::size_t i = 0; i < request.tensors(); ++i) {
        agreement.first_extents.insert(
            agreement.first_extents.end(), members, request.tensor(i).shape.front());
      }
    }
    outcome.ready.push_back(std::move(agreement));
  });
}

void Negotiator::take_request(int rank, Request&& request, RoundOutcome& outcome) {
  const Key key{request.process_set, request.name};
  if (request.kind == OpKind::kJoin) {
    take_join(rank);
    return;
  }
  const int member = sets_.index_of(request.process_set, rank);
  if (member < 0) {
    // The set was removed, on all ranks, while this was on its way.
    ++decisions_;
    if (rank == rank_) {
      fail(key, removed_set_status(request), outcome);
    }
    return;
  }
  // A request for a name that has a slot means that some rank changed its mind about it.
  if (const auto slot = cache_.find(request.process_set, request.name)) {
    free_slot(*slot);
  }
  Waiting& waiting = waiting_[key];
  waiting.by_member.resize(sets_.members(request.process_set)->size());
  auto& mine = waiting.by_member[static_cast<std::size_t>(member)];
  waiting.count += mine.has_value() ? 0 : 1;
  mine = std::move(request);
  touched_.push_back(key);
}

void Negotiator::take_join(int rank) {
  joined_.join(rank);
  join_came_ = true;
  // Nothing that this rank has to take part in itself may wait for its bit any more.
  for (const ResponseCache::Slot slot : cache_.select([&](const Request& cached) {
         return !joinable(cached) && sets_.index_of(cached.process_set, rank) >= 0;
       })) {
    free_slot(slot);
  }
}

void Negotiator::give_slot(const Request& request, const SharedPlacement& devices) {
  std::optional<ResponseCache::Slot> evicted;
  const auto slot = cache_.insert(request, devices, evicted);
  if (evicted) {
    requeue(*evicted);
  }
  if (!slot) {
    return;
  }
  for (BitVector* bits : {&bits_, &foreign_, &joinable_}) {
    bits->grow(cache_.slots());
    bits->clear(*slot);
  }
  by_slot_.resize(std::max(by_slot_.size(), cache_.slots()));
  if (sets_.index_of(request.process_set, rank_) < 0) {
    foreign_.set(*slot);
  }
  if (joinable(request)) {
    joinable_.set(*slot);
  }
}

void Negotiator::free_slot(ResponseCache::Slot slot) {
  cache_.erase(slot);
  requeue(slot);
  foreign_.clear(slot);
  joinable_.clear(slot);
}

/// A bit of this rank that lost its slot has to travel as a request.
void Negotiator::requeue(ResponseCache::Slot slot) {
  if (by_slot_[slot].request == nullptr) {
    return;
  }
  fresh_.push_back(std::exchange(by_slot_[slot], {}));
  bits_.clear(slot);
  news_ = true;
}

/// Whether a rank that has joined would have to set the bit itself.
bool Negotiator::blocked_by_join(const Request& request) const {
  const std::vector<int>& members = *sets_.members(request.process_set);
  return joined_.any() && !joinable(request) &&
         std::any_of(members.begin(), members.end(), [&](int rank) { return joined_.has(rank); });
}

std::optional<std::uint64_t> Negotiator::take_ticket(const Key& key) {
  const auto local = sent_.find(key);
  if (local == sent_.end()) {
    return std::nullopt;
  }
  const std::uint64_t ticket = local->second.ticket;
  sent_.erase(local);
  return ticket;
}

std::vector<std::string> Negotiator::pending_names() const {
  std::vector<std::string> names;
  const auto add = [&](const Request& request) {
    names.push_back(label_of(request.process_set, request.name));
  };
  for (const auto& [key, local] : sent_) {
    add(*local.request);
  }
  for (const Local& local : fresh_) {
    add(*local.request);
  }
  if (join_) {
    add(*join_->request);
  }
  bits_.for_each([&](std::size_t slot) { add(*by_slot_[slot].request); });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace aiacc
