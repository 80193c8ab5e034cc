#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "csrc/core/negotiation/negotiator.h"
#include "csrc/core/negotiation/request_matching.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {

/// What all negotiators of a job have to say, by a model that sees all ranks at once and keeps each
/// request of each rank for itself: without messages, unions and bit vectors. It asks `validate`,
/// ResponseCache and ProcessSetTable, which other tests check.
class NegotiatorModel {
 public:
  /// Process set and name.
  using Key = std::pair<std::uint32_t, std::string>;

  NegotiatorModel(int size, std::size_t capacity, std::uint64_t patience)
      : ranks_(static_cast<std::size_t>(size)), cache_(capacity, patience), sets_(size) {}

  void submit(int rank, const Request& request, Submitted* submitted) {
    Rank& mine = of(rank);
    mine.pending.insert(key_of(request));
    if (request.kind == OpKind::kJoin) {
      for (const auto& [slot, submission] : std::exchange(mine.bits, {})) {
        mine.fresh.push_back(submission);
      }
    }
    const auto slot = cache_.find(slot_key_of(request));
    const auto place = static_cast<std::size_t>(sets_.index_of(request.process_set, rank));
    if (slot && same_signature(cache_.at(*slot), request) &&
        (cache_.devices(*slot) == nullptr || cache_.devices(*slot)->at(place) == request.device)) {
      mine.bits[*slot] = {request, submitted};
    } else {
      mine.fresh.push_back({request, submitted});
    }
  }

  /// What every rank is told in the next round, in order.
  std::vector<std::vector<Response>> round() {
    told_.assign(ranks_.size(), {});
    absence_ = false;
    std::vector<Arrival> arrivals = send();
    take_bits();
    for (const Arrival& arrival : arrivals) {
      take(arrival);
    }
    for (const auto& [text, owed] : std::exchange(owed_, {})) {
      if (waiting_.count(owed.first) == 1) {
        texts_[owed.first].insert(text);
        touch(owed.first);
      }
    }
    settle();
    return told_;
  }

  /// Whether the rank must start the next round although nobody waits.
  bool urgent(int rank) const {
    return !of(rank).fresh.empty() || (absence_ && joined_.count(rank) == 1) ||
           std::any_of(owed_.begin(), owed_.end(), [&](const auto& one) {
             return one.second.second == rank;
           });
  }
  const std::set<Key>& pending(int rank) const { return of(rank).pending; }
  const ProcessSetTable& sets() const { return sets_; }
  /// The highest number of a set so far.
  std::uint32_t last_set() const { return last_set_; }
  bool joining() const { return !joined_.empty(); }

 private:
  using Slot = ResponseCache::Slot;
  /// By rank, in the order of arrival.
  using Requests = std::vector<std::pair<int, Request>>;
  struct Submission {
    Request request;
    Submitted* submitted = nullptr;
  };
  struct Rank {
    std::vector<Submission> fresh;    ///< travels as a request in the next round
    std::map<Slot, Submission> bits;  ///< travels as a bit in each round
    std::map<Key, Submission> sent;   ///< waits for others
    std::set<Key> pending;            ///< all of these
  };
  /// Equal requests of one round. It counts where the last of its ranks has submitted it.
  struct Arrival {
    Requests requests;
    std::size_t position = 0;
  };
  static Key key_of(const Request& request) { return {request.process_set, request.name}; }
  struct ByDigest {
    bool operator()(const Key& a, const Key& b) const {
      return std::make_pair(a.first, digest_of(a.second)) <
             std::make_pair(b.first, digest_of(b.second));
    }
  };
  static ResponseCache::Key slot_key_of(const Request& request) {
    return {request.process_set, digest_of(request.name)};
  }
  /// Whether ranks that have joined answer this.
  static bool takes_zeros(const Request& request) {
    return request.kind == OpKind::kAllreduce && request.process_set == 0 &&
           request.op != ReduceOp::kMin && request.op != ReduceOp::kMax &&
           request.op != ReduceOp::kProduct;
  }
  Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& members(std::uint32_t set) const { return *sets_.members(set); }

  std::vector<Arrival> send() {
    std::map<std::string, Arrival> equal;
    for (int rank = 0; rank < size(); ++rank) {
      std::size_t position = 0;
      for (const auto& [request, submitted] : std::exchange(of(rank).fresh, {})) {
        Arrival& arrival = equal[SharedRequest(request, 0, 0).key];
        arrival.requests.emplace_back(rank, request);
        arrival.position = position++;
        of(rank).sent[key_of(request)] = {request, submitted};
      }
    }
    std::vector<Arrival> arrivals;
    for (auto& [key, arrival] : equal) {
      arrivals.push_back(std::move(arrival));
    }
    std::sort(arrivals.begin(), arrivals.end(), [](const Arrival& a, const Arrival& b) {
      return std::make_pair(a.requests.back().first, a.position) <
             std::make_pair(b.requests.back().first, b.position);
    });
    return arrivals;
  }

  void take_bits() {
    for (const Slot slot : cache_.select([](const Request&) { return true; })) {
      const Request request = cache_.at(slot);
      const std::vector<int>& ranks = members(request.process_set);
      const bool ready = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
        return of(rank).bits.count(slot) == 1 || (joined_.count(rank) == 1 && takes_zeros(request));
      });
      if (!ready) {
        continue;
      }
      cache_.touch(slot);
      Response response;
      response.devices = cache_.devices(slot);
      response.joined = !joined_.empty() && takes_zeros(request);
      for (std::size_t i = 0; request.kind == OpKind::kAllgather && i < request.tensors.size();
           ++i) {
        response.first_extents.insert(
            response.first_extents.end(), ranks.size(), request.tensors[i].shape[0]);
      }
      for (const int rank : ranks) {
        const auto bit = of(rank).bits.find(slot);
        const bool zeros = bit == of(rank).bits.end();
        tell(rank, request, zeros ? nullptr : bit->second.submitted, response);
        of(rank).bits.erase(slot);
      }
    }
  }

  /// `submitted` null: the rank gives zeros.
  void tell(int rank, const Request& request, Submitted* submitted, Response response) {
    response.submitted = submitted;
    if (submitted != nullptr) {
      of(rank).pending.erase(key_of(request));
    } else {
      response.zeros = std::make_shared<Request>(request);
    }
    told_[static_cast<std::size_t>(rank)].push_back(std::move(response));
  }

  void take(const Arrival& arrival) {
    const Request& request = arrival.requests.front().second;
    const Key key = key_of(request);
    if (sets_.members(key.first) == nullptr) {
      for (const auto& [rank, mine] : arrival.requests) {
        fail(rank, key, removed);
      }
      return;
    }
    absence_ =
        absence_ || request.kind == OpKind::kJoin || request.kind == OpKind::kLeaveProcessSet;
    if (request.kind == OpKind::kJoin) {
      for (const auto& [rank, mine] : arrival.requests) {
        joined_.insert(last_joined_ = rank);
        free_slots([&, rank = rank](const Request& cached) {
          return !takes_zeros(cached) && sets_.index_of(cached.process_set, rank) >= 0;
        });
      }
      return;
    }
    free_slots([&](const Request& cached) { return key_of(cached) == key; });
    Requests& waiting = waiting_[key];
    waiting.insert(waiting.end(), arrival.requests.begin(), arrival.requests.end());
    touch(key);
    if (request.kind == OpKind::kLeaveProcessSet) {
      for (const auto& [rank, mine] : arrival.requests) {
        left_[key.first].insert(rank);
      }
      free_slots([&](const Request& cached) { return cached.process_set == key.first; });
    }
  }

  void touch(const Key& key) {
    touched_.erase(std::remove(touched_.begin(), touched_.end(), key), touched_.end());
    touched_.push_back(key);
  }

  template <class Chosen>
  void free_slots(Chosen chosen) {
    for (const Slot slot : cache_.select(chosen)) {
      cache_.erase(slot);
      vacate(slot);
    }
  }
  void vacate(Slot slot) {
    for (Rank& rank : ranks_) {
      const auto bit = rank.bits.find(slot);
      if (bit != rank.bits.end()) {
        rank.fresh.push_back(bit->second);
        rank.bits.erase(bit);
      }
    }
  }

  void settle() {
    std::vector<Key> keys = std::exchange(touched_, {});
    for (const auto& [key, waiting] : waiting_) {
      if (absence_ && std::find(keys.begin(), keys.end(), key) == keys.end()) {
        keys.push_back(key);
      }
    }
    for (const Key& key : keys) {
      const auto found = waiting_.find(key);
      if (found != waiting_.end()) {
        settle(key, found->second);
      }
    }
    if (joined_.size() == ranks_.size() && owed_.empty()) {
      Response response;
      response.value = last_joined_;
      for (int rank = 0; rank < size(); ++rank) {
        Request join;
        join.name = "join";
        tell(rank, join, take_sent(rank, {0, "join"}).submitted, response);
      }
      joined_.clear();
    }
  }

  /// By value: it leaves the table when it is decided on.
  void settle(const Key& key, Requests waiting) {
    std::set<int> ranks;
    for (const auto& [rank, request] : waiting) {
      if (request.kind == OpKind::kFormProcessSet) {
        ranks.insert(request.numbers.begin(), request.numbers.end());
      }
    }
    if (ranks.empty()) {
      ranks.insert(members(key.first).begin(), members(key.first).end());
    }
    int absent = -1;
    bool missing = false;
    for (const int rank : ranks) {
      const bool came = std::any_of(
          waiting.begin(), waiting.end(), [&](const auto& one) { return one.first == rank; });
      const bool may_come = joined_.count(rank) == 0 && left_[key.first].count(rank) == 0;
      missing = missing || (!came && may_come);
      if (!came && !may_come && absent < 0) {
        absent = rank;
      }
    }
    const auto needs_all = std::find_if(
        waiting.begin(), waiting.end(), [](const auto& one) { return !takes_zeros(one.second); });
    if (absent >= 0 && needs_all != waiting.end()) {
      forget(key);
      fail_all(key, [&](const Request& mine) { return absence_of(absent, mine); });
    } else if (!missing && knows_enough(key, waiting, absent >= 0)) {
      forget(key);
      conclude(std::move(waiting), {ranks.begin(), ranks.end()});
    }
  }

  /// Texts travel to say in what the first two that differ do so, and for zeros. The lowest rank
  /// that has one tells it in the next round.
  bool knows_enough(const Key& key, const Requests& waiting, bool some_absent) {
    std::map<std::string, std::pair<int, Request>> lowest;
    for (const auto& [rank, request] : waiting) {
      const auto [one, fresh] = lowest.try_emplace(SharedRequest(request, 0, 0).key, rank, request);
      if (rank < one->second.first) {
        one->second = {rank, request};
      }
    }
    std::vector<std::pair<int, Request>> differ;
    for (const auto& [text, one] : lowest) {
      differ.push_back(one);
    }
    std::sort(differ.begin(), differ.end(), [](const auto& a, const auto& b) {
      return a.first < b.first;
    });
    if (differ.size() == 1 && !some_absent) {
      return true;
    }
    const auto text = [&](std::size_t i) {
      return text_from(differ[i].first, differ[i].second).key;
    };
    const auto is_told = [&](std::size_t i) {
      return changes_sets(differ[i].second.kind) || texts_[key].count(text(i)) == 1;
    };
    std::size_t told = 0;
    for (; told < differ.size() && is_told(told); ++told) {
      const auto& [rank, request] = differ[told];
      if (!validate({differ[0].second, request}, {differ[0].first, rank}).ok()) {
        return true;
      }
    }
    for (std::size_t i = told; i < std::min(differ.size(), told + 2); ++i) {
      if (!is_told(i)) {
        owed_[text(i)] = {key, differ[i].first};
      }
    }
    return told == differ.size();
  }

  void conclude(Requests waiting, const std::vector<int>& members) {
    std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) {
      return a.first < b.first;
    });
    std::vector<int> ranks;
    std::vector<Request> requests;
    std::map<int, std::int32_t> devices;
    for (const auto& [rank, request] : waiting) {
      ranks.push_back(rank);
      requests.push_back(request);
      devices[rank] = request.device;
    }
    const Request first = requests.front();
    Response response;
    response.status = validate(requests, ranks);
    response.joined = !joined_.empty() && takes_zeros(first);
    const bool ok = response.status.ok();
    if (ok && first.on_gpu()) {
      DevicePlacement placement;
      for (const int rank : members) {
        placement.push_back(devices.count(rank) == 1 ? devices[rank] : -1);
      }
      response.devices = std::make_shared<DevicePlacement>(placement);
    }
    bool again = ok && first.cacheable && left_[first.process_set].empty() &&
                 first.kind != OpKind::kAlltoall &&
                 (takes_zeros(first) || std::none_of(members.begin(), members.end(), [&](int rank) {
                    return joined_.count(rank) == 1;
                  }));
    for (std::size_t i = 0; ok && first.kind == OpKind::kAllgather && i < first.tensors.size();
         ++i) {
      for (const Request& request : requests) {
        response.first_extents.push_back(request.tensors[i].shape[0]);
        again = again && request.tensors[i].shape[0] == first.tensors[i].shape[0];
      }
    }
    if (ok && changes_sets(first.kind)) {
      change_sets(first, response);
    }
    if (again) {
      std::vector<Slot> evicted;
      cache_.insert(slot_key_of(first), first, response.devices, evicted);
      for (const Slot slot : evicted) {
        vacate(slot);
      }
    }
    for (int rank = 0; rank < size(); ++rank) {
      Submitted* submitted = take_sent(rank, key_of(first)).submitted;
      Response mine = response;
      for (std::size_t i = 0; ok && first.kind == OpKind::kAlltoall && i < requests.size(); ++i) {
        for (std::size_t to = 0; to < members.size(); ++to) {
          mine.value += requests[i].numbers[to];
          if (members[to] == rank) {
            mine.first_extents.push_back(requests[i].numbers[to]);
          }
        }
      }
      if (submitted != nullptr || (ok && index_in(members, rank) >= 0)) {
        tell(rank, first, submitted, mine);
      }
    }
  }

  void change_sets(const Request& request, Response& response) {
    const std::vector<int> ranks(request.numbers.begin(), request.numbers.end());
    const auto existing = sets_.find(ranks);
    if (!adds_set(request.kind)) {
      const std::uint32_t id = set_to_remove(request);
      response.value = id != 0 && sets_.members(id) != nullptr ? 1 : 0;
      if (response.value == 1) {
        remove(id);
      }
    } else if (request.kind == OpKind::kFormProcessSet) {
      response.value = last_set_ = sets_.form(ranks);
    } else if (existing) {
      response.status = {Code::kInvalidArgument,
                         "[process set] ranks " + shape_text(request.numbers) +
                             " are process set " + std::to_string(*existing) +
                             " already (expected ranks that no set has); use that one"};
    } else {
      response.value = last_set_ = sets_.add(ranks);
    }
  }

  void remove(std::uint32_t id) {
    free_slots([&](const Request& cached) { return cached.process_set == id; });
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      const Key key = (at++)->first;
      if (key.first == id) {
        forget(key);
        fail_all(key, removed);
      }
    }
    sets_.remove(id);
    left_.erase(id);
  }

  void forget(const Key& key) {
    waiting_.erase(key);
    texts_.erase(key);
  }
  /// Of nothing if the rank has submitted nothing of the kind.
  Submission take_sent(int rank, const Key& key) {
    const auto found = of(rank).sent.find(key);
    return found == of(rank).sent.end() ? Submission() : of(rank).sent.extract(found).mapped();
  }
  template <class Reason>
  void fail(int rank, const Key& key, const Reason& reason) {
    const Submission mine = take_sent(rank, key);
    if (mine.submitted != nullptr) {
      Response response;
      response.status = reason(mine.request);
      tell(rank, mine.request, mine.submitted, response);
    }
  }
  template <class Reason>
  void fail_all(const Key& key, const Reason& reason) {
    for (int rank = 0; rank < size(); ++rank) {
      fail(rank, key, reason);
    }
  }

  static Status mismatch(const std::string& scope,
                         const Request& request,
                         const std::string& text) {
    return {Code::kMismatch,
            "[" + scope + "] " + name_of(request.kind) + " '" +
                label_of(request.process_set, request.name) + "': " + text};
  }
  Status absence_of(int rank, const Request& request) const {
    const std::string who = "rank " + std::to_string(rank);
    const std::string set = "process set " + std::to_string(request.process_set);
    if (joined_.count(rank) == 1) {
      return mismatch("join", request, who + kHasJoined);
    }
    return mismatch("process set", request, who + " has left " + set + kHasLeft);
  }
  static Status removed(const Request& request) {
    const std::string set = "process set " + std::to_string(request.process_set);
    return mismatch("process set", request, set + kWasRemoved);
  }
  static constexpr char kHasJoined[] =
      " has joined and cannot take part (expected an allreduce with Sum, Average or Adasum over "
      "all "
      "ranks while a rank waits in join); let every rank do this before the first one joins";
  static constexpr char kHasLeft[] =
      " without submitting this; let all members finish the work of a set before one leaves";
  static constexpr char kWasRemoved[] =
      " was removed before all its members had submitted this; finish the work of a set before "
      "removing it";

  std::vector<Rank> ranks_;
  ResponseCache cache_;
  ProcessSetTable sets_;
  std::uint32_t last_set_ = 0;
  std::map<Key, Requests, ByDigest> waiting_;
  std::map<Key, std::set<std::string>> texts_;       ///< texts that have travelled
  std::map<std::string, std::pair<Key, int>> owed_;  ///< those that a rank is to tell next
  std::vector<Key> touched_;                         ///< in this round, the last one last
  std::set<int> joined_;
  int last_joined_ = -1;
  std::map<std::uint32_t, std::set<int>> left_;  ///< by set
  bool absence_ = false;                         ///< a join or a leave came in this round
  std::vector<std::vector<Response>> told_;
};

}  // namespace aiacc
