#include "csrc/core/negotiator.h"

#include <algorithm>
#include <utility>

#include "csrc/core/validate.h"

namespace aiacc {

Negotiator::Negotiator(int rank, int size, std::size_t cache_capacity, const Parameters& parameters)
    : rank_(rank), size_(size), parameters_(parameters), cache_(cache_capacity) {}

void Negotiator::submit(const Request& request, std::uint64_t ticket) {
  ++submitted_;
  const auto slot = cache_.find(request.name);
  if (slot && same_signature(cache_.at(*slot), request)) {
    bits_.set(*slot);
    by_slot_[*slot] = {&request, ticket};
    return;
  }
  fresh_.push_back({&request, ticket});
}

void Negotiator::propose(const Parameters& parameters) {
  proposal_ = parameters;
  proposal_->epoch = parameters_.epoch + 1;
}

void Negotiator::contribute(Bytes& out) {
  message_.flags = std::exchange(flags_, 0);
  message_.epoch = parameters_.epoch;
  message_.ready = bits_;
  message_.reports.clear();
  if (!fresh_.empty() || answer_due_ || proposal_) {
    Report report;
    report.rank = rank_;
    report.has_pending = std::exchange(answer_due_, false);
    if (report.has_pending) {
      report.pending = pending_names();
    }
    for (const Local& local : fresh_) {
      report.requests.push_back(*local.request);
      sent_[local.request->name] = local;
    }
    fresh_.clear();
    if (proposal_) {
      report.proposals.push_back(*std::exchange(proposal_, std::nullopt));
    }
    message_.reports.push_back(std::move(report));
  }
  requeued_ = false;
  message_.encode(out);
}

RoundOutcome Negotiator::apply(const Bytes& combined) {
  RoundMessage message = RoundMessage::decode(combined);
  RoundOutcome outcome;
  outcome.flags = message.flags;
  answer_due_ = (message.flags & kFlagStallQuery) != 0;
  apply_bits(message.ready, outcome);
  std::sort(message.reports.begin(), message.reports.end(), [](const auto& a, const auto& b) {
    return a.rank < b.rank;
  });
  std::vector<Parameters> proposals;
  for (Report& report : message.reports) {
    if (report.rank < 0 || report.rank >= size_) {
      throw Error(Code::kInternal,
                  "[negotiation] a report of rank " + std::to_string(report.rank) + " of " +
                      std::to_string(size_));
    }
    for (Request& request : report.requests) {
      apply_request(report.rank, std::move(request), outcome);
    }
    proposals.insert(proposals.end(), report.proposals.begin(), report.proposals.end());
    if (report.has_pending) {
      outcome.answers.push_back(std::move(report));
    }
  }
  const Parameters next = next_parameters(parameters_, proposals);
  outcome.parameters_changed = next.epoch != parameters_.epoch;
  parameters_ = next;
  submitted_ -= outcome.ready.size();
  return outcome;
}

void Negotiator::apply_bits(const BitVector& ready, RoundOutcome& outcome) {
  ready.for_each([&](std::size_t bit) {
    const auto slot = static_cast<ResponseCache::Slot>(bit);
    AIACC_CHECK(bit < by_slot_.size() && by_slot_[bit].request != nullptr);
    Agreement agreement;
    agreement.ticket = by_slot_[slot].ticket;
    if (by_slot_[slot].request->kind == OpKind::kAllgather) {
      agreement.first_extents.assign(static_cast<std::size_t>(size_),
                                     by_slot_[slot].request->shape.front());
    }
    outcome.ready.push_back(std::move(agreement));
    by_slot_[slot] = {};
    bits_.clear(slot);
    cache_.touch(slot);
  });
}

void Negotiator::apply_request(int rank, Request&& request, RoundOutcome& outcome) {
  // A request for a name that has a slot means that some rank changed its mind about it.
  if (const auto slot = cache_.find(request.name)) {
    free_slot(*slot);
  }
  const std::string name = request.name;
  Waiting& waiting = waiting_[name];
  waiting.by_rank.resize(static_cast<std::size_t>(size_));
  auto& mine = waiting.by_rank[static_cast<std::size_t>(rank)];
  waiting.count += mine.has_value() ? 0 : 1;
  mine = std::move(request);
  if (waiting.count == size_) {
    Waiting complete = std::move(waiting);
    waiting_.erase(name);
    conclude(name, std::move(complete), outcome);
  }
}

void Negotiator::conclude(const std::string& name, Waiting&& waiting, RoundOutcome& outcome) {
  std::vector<Request> by_rank;
  by_rank.reserve(waiting.by_rank.size());
  for (auto& request : waiting.by_rank) {
    by_rank.push_back(std::move(*request));
  }
  Agreement agreement;
  agreement.status = validate(by_rank);
  const auto local = sent_.find(name);
  AIACC_CHECK(local != sent_.end());
  agreement.ticket = local->second.ticket;
  sent_.erase(local);
  bool uniform = true;
  if (agreement.status.ok() && by_rank.front().kind == OpKind::kAllgather) {
    for (const Request& request : by_rank) {
      agreement.first_extents.push_back(request.shape.front());
      uniform = uniform && request.shape == by_rank.front().shape;
    }
  }
  if (agreement.status.ok() && uniform && by_rank.front().cacheable) {
    std::optional<ResponseCache::Slot> evicted;
    const auto slot = cache_.insert(by_rank.front(), evicted);
    if (evicted) {
      requeue(*evicted);
    }
    if (slot) {
      bits_.grow(cache_.slots());
      by_slot_.resize(std::max(by_slot_.size(), cache_.slots()));
    }
  }
  outcome.ready.push_back(std::move(agreement));
}

void Negotiator::free_slot(ResponseCache::Slot slot) {
  cache_.erase(slot);
  requeue(slot);
}

/// A bit of this rank that lost its slot has to travel as a request.
void Negotiator::requeue(ResponseCache::Slot slot) {
  if (by_slot_[slot].request == nullptr) {
    return;
  }
  fresh_.push_back(std::exchange(by_slot_[slot], {}));
  bits_.clear(slot);
  requeued_ = true;
}

std::vector<std::string> Negotiator::pending_names() const {
  std::vector<std::string> names;
  names.reserve(sent_.size() + fresh_.size());
  for (const auto& [name, local] : sent_) {
    names.push_back(name);
  }
  for (const Local& local : fresh_) {
    names.push_back(local.request->name);
  }
  bits_.for_each([&](std::size_t slot) { names.push_back(by_slot_[slot].request->name); });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace aiacc
