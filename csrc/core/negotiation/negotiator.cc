#include "csrc/core/negotiation/negotiator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "csrc/core/negotiation/response.h"

namespace aiacc {
namespace {

/// Names that some ranks have submitted and others have not.
constexpr std::size_t kMaxWaiting = std::size_t{1} << 20;

/// Throws Error(kMismatch) if two names have one digest.
void check_names(const Request& a, const Request& b) {
  if (a.name != b.name) {
    throw Error(Code::kMismatch,
                "[negotiation] the names '" + a.name + "' and '" + b.name +
                    "' have the same digest; give one of them another name");
  }
}

/// For errors: its name, if this rank knows it.
std::string quoted(const SharedRequest& shared) {
  return shared.request == nullptr
             ? "something"
             : "'" + label_of(shared.id.process_set, shared.request->name) + "'";
}

}  // namespace

Negotiator::Negotiator(int rank,
                       int size,
                       std::size_t cache_capacity,
                       const Parameters& parameters,
                       std::uint64_t cache_patience)
    : rank_(rank),
      parameters_(parameters),
      cache_(cache_capacity, cache_patience),
      sets_(size),
      joined_(size) {}

void Negotiator::submit(Submitted& submitted) {
  const Request& request = submitted.request;
  ++submitted_;
  if (request.kind == OpKind::kJoin) {
    // A bit would not be told from the one that a joined rank sets anyway.
    bits_.for_each([&](std::size_t slot) { requeue(static_cast<ResponseCache::Slot>(slot)); });
  }
  const auto slot = cache_.find({request.process_set, digest_of(request.name)});
  if (slot && has_slot(request, *slot)) {
    bits_.set(*slot);
    by_slot_[*slot] = &submitted;
    return;
  }
  fresh_.push_back(&submitted);
}

/// Whether what was agreed on is what this rank asks for again.
bool Negotiator::has_slot(const Request& request, ResponseCache::Slot slot) const {
  check_names(cache_.at(slot), request);
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

void Negotiator::answer_with(std::vector<LaneReport> lanes, std::vector<PendingName> names) {
  for (LaneReport& lane : lanes) {
    answers_.lanes.push_back({std::move(lane), RankSet(rank_)});
  }
  answers_.names = std::move(names);
  for (PendingName& name : answers_.names) {
    name.ranks = RankSet(rank_);
  }
}

void Negotiator::contribute(Bytes& out, std::uint32_t state) {
  message_.flags = std::exchange(flags_, 0U) | state;
  message_.epoch = parameters_.epoch;
  message_.ready = bits_;
  message_.ready.merge(foreign_);
  if (joined_.has(rank_)) {
    message_.ready.merge(joinable_);
  }
  message_.clear_entries();
  if (std::exchange(asked_, 0U) != 0) {
    message_.answers = std::exchange(answers_, {});
    message_.answers.ranks = RankSet(rank_);
  }
  offer_requests();
  message_.texts = owed_;
  if (proposal_ && proposal_->epoch == parameters_.epoch + 1) {
    message_.proposal = Proposal{rank_, *proposal_};
  }
  proposal_.reset();
  news_ = !fresh_.empty();
  message_.encode(out);
}

/// As many as a round may carry, in the order of submission.
void Negotiator::offer_requests() {
  std::size_t cost = 0;
  auto next = fresh_.begin();
  for (; next != fresh_.end(); ++next) {
    SharedRequest shared(
        (*next)->request, rank_, static_cast<std::uint32_t>(message_.requests.size()));
    cost += cost_of(shared.key, *shared.senders);
    if (cost > kRoundBudget && !message_.requests.empty()) {
      break;
    }
    if ((*next)->request.kind == OpKind::kFormProcessSet) {
      message_.flags |= kFlagForming;
    }
    offered_.push_back({*next, {shared.id.process_set, shared.id.name}, shared.key});
    message_.requests.push_back(std::move(shared));
  }
  fresh_.erase(fresh_.begin(), next);
}

/// What was offered and did not find room goes to the front of what is to be sent.
void Negotiator::take_back(const std::optional<std::string>& cut) {
  std::vector<Submitted*> again;
  for (Offer& offer : offered_) {
    Submitted* own = offer.submitted;
    if (cut && offer.key >= *cut) {
      again.push_back(own);
    } else if (own->request.kind == OpKind::kJoin) {
      join_ = own;
    } else {
      const Key key = offer.name;
      const auto [other, fresh] = sent_.try_emplace(key, std::move(offer));
      if (!fresh) {
        check_names(other->second.submitted->request, own->request);
      }
    }
  }
  offered_.clear();
  fresh_.insert(fresh_.begin(), again.begin(), again.end());
  owed_.erase(std::remove_if(owed_.begin(),
                             owed_.end(),
                             [&](const SharedRequest& text) { return !cut || text.key < *cut; }),
              owed_.end());
  news_ = news_ || !again.empty() || !owed_.empty();
}

const RoundOutcome& Negotiator::apply(const Bytes& combined) {
  RoundMessage& message = message_;
  message.decode(combined, static_cast<int>(sets_.members(0)->size()));
  RoundOutcome& outcome = outcome_;
  outcome.clear();
  outcome.flags = message.flags;
  asked_ = message.flags & (kFlagStallQuery | kFlagUnitQuery);
  check_requests(message);
  check_own_requests(message);
  take_back(message.cut);
  apply_bits(message.ready, outcome);
  take_requests(message.requests, outcome);
  for (const SharedRequest& text : message.texts) {
    take_text(text);
  }
  outcome.answers = std::move(message.answers);
  std::vector<Parameters> proposals;
  if (message.proposal) {
    proposals.push_back(message.proposal->parameters);
  }
  message.clear_entries();
  settle_all(outcome);
  const Parameters next = next_parameters(parameters_, proposals);
  parameters_ = next;
  submitted_ -= static_cast<std::size_t>(
      std::count_if(outcome.ready.begin(), outcome.ready.end(), [](const Response& response) {
        return response.submitted != nullptr;
      }));
  return outcome;
}

void Negotiator::apply_bits(const BitVector& ready, RoundOutcome& outcome) {
  ready.for_each([&](std::size_t bit) {
    const auto slot = static_cast<ResponseCache::Slot>(bit);
    AIACC_CHECK(cache_.has(slot));
    cache_.touch(slot);
    if (foreign_.test(slot)) {
      return;
    }
    Response response;
    const Request& request = cache_.at(slot);
    if (by_slot_[slot] != nullptr) {
      response.submitted = std::exchange(by_slot_[slot], nullptr);
      bits_.clear(slot);
    } else {
      AIACC_CHECK(joined_.has(rank_) && joinable_.test(slot));
      response.zeros = std::make_shared<Request>(request);
    }
    response.devices = cache_.devices(slot);
    response.joined = joined_.any() && joinable(request);
    if (request.kind == OpKind::kAllgather) {
      const std::size_t members = sets_.members(request.process_set)->size();
      for (const TensorSpec& tensor : request.tensors) {
        response.first_extents.insert(response.first_extents.end(), members, tensor.shape.front());
      }
    }
    outcome.ready.push_back(std::move(response));
  });
}

void Negotiator::take_requests(std::vector<SharedRequest>& requests, RoundOutcome& outcome) {
  // In the order in which ranks would be heard in turn: a request counts with its last sender.
  std::sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.senders->last(), a.position) <
           std::make_pair(b.senders->last(), b.position);
  });
  for (SharedRequest& shared : requests) {
    take_request(std::move(shared), outcome);
  }
}

void Negotiator::take_request(SharedRequest&& shared, RoundOutcome& outcome) {
  const Key key{shared.id.process_set, shared.id.name};
  const RankSet ranks = shared.senders->ranks();
  const OpKind kind = shared.request == nullptr ? OpKind::kAllreduce : shared.request->kind;
  if (kind == OpKind::kJoin) {
    ranks.for_each([&](int rank) { take_join(rank); });
    return;
  }
  const std::vector<int>* members = sets_.members(key.first);
  if (members == nullptr) {
    // The set was removed, on all ranks, while this was on its way.
    if (ranks.has(rank_)) {
      fail(key, removed_set_status, outcome);
    }
    return;
  }
  const auto mine = sent_.find(key);
  if (shared.request == nullptr && mine != sent_.end() && mine->second.key == shared.key) {
    // It stays alive as long as this needs it: until this gives it back.
    shared.request = {std::shared_ptr<const Request>(), &mine->second.submitted->request};
  }
  if (key.first != 0) {
    ranks.for_each([&](int rank) {
      if (index_in(*members, rank) < 0) {
        throw Error(Code::kInternal,
                    "[negotiation] rank " + std::to_string(rank) + " submitted " + quoted(shared) +
                        ", which it is not a member for");
      }
    });
  }
  // A request for a name that has a slot means that some rank changed its mind about it.
  if (const auto slot = cache_.find(key)) {
    free_slot(*slot);
  }
  Waiting& waiting = waiting_[key];
  const bool again = waiting.arrived.meets(ranks);
  ranks.for_each([&](int rank) {
    if (again && waiting.arrived.has(rank)) {
      throw Error(Code::kInternal,
                  "[negotiation] rank " + std::to_string(rank) + " submitted " + quoted(shared) +
                      " twice before it was ready");
    }
  });
  if (waiting_.size() > kMaxWaiting) {
    throw Error(Code::kMismatch,
                "[negotiation] more than " + std::to_string(kMaxWaiting) +
                    " operations wait for other ranks; let all ranks submit the same ones");
  }
  waiting.arrived.add(ranks);
  if (kind == OpKind::kLeaveProcessSet) {
    take_leave(key.first, ranks);
  }
  if (kind == OpKind::kFormProcessSet) {
    const std::vector<std::int64_t>& told = shared.request->numbers;
    const std::vector<int> others = std::move(waiting.formed);
    waiting.formed.clear();
    std::set_union(
        others.begin(), others.end(), told.begin(), told.end(), std::back_inserter(waiting.formed));
  }
  const auto equal = std::find_if(waiting.requests.begin(),
                                  waiting.requests.end(),
                                  [&](const auto& other) { return other.key == shared.key; });
  if (equal == waiting.requests.end()) {
    waiting.requests.push_back(std::move(shared));
  } else {
    auto all = std::make_shared<Senders>(*equal->senders);
    all->add(*shared.senders);
    equal->senders = std::move(all);
    if (equal->request == nullptr) {
      equal->request = std::move(shared.request);
    }
  }
  touched_.push_back(key);
}

void Negotiator::give_slot(const SharedRequest& shared, const SharedPlacement& devices) {
  const RequestId& id = shared.id;
  Request outside;
  outside.process_set = id.process_set;
  const auto slot = cache_.insert({id.process_set, id.name},
                                  shared.request == nullptr ? outside : *shared.request,
                                  devices,
                                  evicted_);
  for (const ResponseCache::Slot gone : evicted_) {
    vacate(gone);
  }
  if (!slot) {
    return;
  }
  for (BitVector* bits : {&bits_, &foreign_, &joinable_}) {
    bits->grow(cache_.slots());
    bits->clear(*slot);
  }
  by_slot_.resize(std::max(by_slot_.size(), cache_.slots()));
  if (sets_.index_of(id.process_set, rank_) < 0) {
    foreign_.set(*slot);
  }
  if (id.joinable) {
    joinable_.set(*slot);
  }
}

void Negotiator::free_slot(ResponseCache::Slot slot) {
  cache_.erase(slot);
  vacate(slot);
}

void Negotiator::vacate(ResponseCache::Slot slot) {
  requeue(slot);
  foreign_.clear(slot);
  joinable_.clear(slot);
}

/// A bit of this rank that lost its slot has to travel as a request.
void Negotiator::requeue(ResponseCache::Slot slot) {
  if (by_slot_[slot] == nullptr) {
    return;
  }
  fresh_.push_back(std::exchange(by_slot_[slot], nullptr));
  bits_.clear(slot);
  news_ = true;
}

/// Whether a rank that has joined, or has left the set, would have to set the bit itself.
bool Negotiator::never_again(const RequestId& id) const {
  if (leaving_.count(id.process_set) != 0) {
    return true;
  }
  const std::vector<int>& members = *sets_.members(id.process_set);
  return joined_.any() && !id.joinable &&
         std::any_of(members.begin(), members.end(), [&](int rank) { return joined_.has(rank); });
}

/// Null if this rank has sent nothing of the name.
Submitted* Negotiator::take_own(const Key& key) {
  const auto found = sent_.find(key);
  if (found == sent_.end()) {
    return nullptr;
  }
  Submitted* own = found->second.submitted;
  sent_.erase(found);
  return own;
}

}  // namespace aiacc
