#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/dispatch/planner_input.h"
#include "csrc/core/execution/host_unit.h"
#include "csrc/core/negotiation/message.h"
#include "csrc/core/negotiation/negotiator.h"
#include "csrc/core/negotiation/request_checks.h"
#include "csrc/engines/engine.h"
#include "tests/cpp/support/mutator.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {

/// A rank that sends what no rank should, most of it well formed. Same seed, same lies.
class Liar {
 public:
  explicit Liar(std::uint32_t seed) : random_(seed), mutator_(seed) {}

  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  bool chance(std::size_t one_in) { return below(one_in) == 0; }

  /// Makes a lie of the share that `rank` of `size` would send.
  Bytes lie(const Bytes& share, int rank, int size) {
    if (chance(3)) {
      return mutator_.damage(share);
    }
    RoundMessage message = decoded(share);
    apart_ = false;
    for (std::size_t left = 1 + below(3); left > 0 && !apart_; --left) {
      change(message, rank, size);
    }
    return encoded(message);
  }

  /// Small, negative or at the edge of some type or limit.
  std::int64_t number() {
    static constexpr std::int64_t kNumbers[] = {0,
                                                1,
                                                2,
                                                3,
                                                -1,
                                                1 << 16,
                                                std::int64_t{1} << 31,
                                                std::int64_t{1} << 32,
                                                std::int64_t{1} << 46,
                                                (std::int64_t{1} << 61) + 1,
                                                std::int64_t{1} << 62,
                                                std::numeric_limits<std::int64_t>::max(),
                                                std::numeric_limits<std::int64_t>::min()};
    return kNumbers[below(std::size(kNumbers))];
  }

  void change(Request& request) {
    const std::function<void()> changes[] = {
        [&] { request.kind = static_cast<OpKind>(below(kOpKinds)); },
        [&] { request.tensors[0].dtype = static_cast<DataType>(below(kDataTypes)); },
        [&] { request.op = static_cast<ReduceOp>(below(6)); },
        [&] { request.root = static_cast<std::int32_t>(number()); },
        [&] { request.device = static_cast<std::int32_t>(below(3)) - 1; },
        [&] { request.process_set = static_cast<std::uint32_t>(number()); },
        [&] { change(request.tensors[0].shape); },
        [&] { request.tensors.resize(1 + below(4)); },
        [&] { change(request.tensors[below(request.tensors.size())].shape); },
        [&] { change(request.numbers); },
        [&] { (chance(2) ? request.prescale : request.postscale) = std::nan(""); },
        [&] { request.cacheable = !request.cacheable; }};
    changes[below(std::size(changes))]();
    for (std::size_t i = 0; has_rows(request.kind) && i < request.tensors.size(); ++i) {
      TensorSpec& tensor = request.tensors[i];
      tensor.shape.resize(std::max<std::size_t>(tensor.shape.size(), 1), number());
    }
  }

 private:
  void change(std::vector<std::int64_t>& numbers) {
    if (numbers.empty() || chance(4)) {
      numbers.resize(below(5), number());
    } else if (chance(4)) {
      numbers.clear();
    } else {
      numbers[below(numbers.size())] = number();
    }
  }

  void change(RoundMessage& message, int rank, int size) {
    switch (below(8)) {
      case 0:
        message.flags ^= 1U << below(5);
        return;
      case 1:
        if (message.ready.words() > 0) {
          message.ready.word(below(message.ready.words())) ^= std::uint64_t{1} << below(64);
        }
        return;
      case 2:
        message.answers.ranks.add(static_cast<int>(below(static_cast<std::size_t>(size) + 1)));
        message.answers.names.push_back({"allreduce.x", 1, {}, false, RankSet(rank)});
        return;
      case 3:
        message.proposal = Proposal{rank, {1, 1 + below(1 << 20), 1}};
        return;
      case 4:
        message.cut = std::string(1, static_cast<char>(below(3))) + std::string(below(3), 'x');
        return;
      case 5:
        if (!message.requests.empty()) {
          message.requests.pop_back();
        }
        return;
      default:
        change_requests(message, rank, size);
    }
  }

  void change_requests(RoundMessage& message, int rank, int size) {
    if (!message.texts.empty() && chance(2)) {
      SharedRequest& text = message.texts[below(message.texts.size())];
      text = text_from(rank, changed(*text.request));
      return;
    }
    if (message.requests.empty() || chance(4)) {
      Request request;
      request.name = "new";
      request.tensors[0].shape = {2};
      request = changed(request);
      message.requests.emplace_back(request, rank, 0);
      message.texts.push_back(text_from(rank, request));
      return;
    }
    SharedRequest& shared = message.requests[below(message.requests.size())];
    const int sender =
        chance(6) ? static_cast<int>(below(static_cast<std::size_t>(size) + 1)) : rank;
    if (chance(3)) {
      Senders senders = *shared.senders;
      change(senders.shares[0].part.numbers);
      senders.shares[0].ranks = RankSet(sender);
      shared.senders = std::make_shared<Senders>(senders);
    } else if (shared.request != nullptr) {
      shared = SharedRequest(changed(shared.of(shared.senders->first())),
                             sender,
                             static_cast<std::uint32_t>(below(4)));
    } else {
      shared.key[1 + below(shared.key.size() - 1)] ^= static_cast<char>(1U << below(8));
    }
    apart_ = true;
  }

  Request changed(Request request) {
    if (!chance(6)) {
      change(request);
    }
    return request;
  }

  std::mt19937 random_;
  Mutator mutator_;
  bool apart_ = false;  ///< what was changed last cannot be put together again
};

/// Reads and writes all the memory that an engine would, and sends nothing: a sanitizer tells if
/// some of it is nobody's.
class TouchingEngine : public Engine {
 public:
  explicit TouchingEngine(int rank) : rank_(static_cast<std::size_t>(rank)) {}

  const char* name() const override { return "touching"; }
  int lanes() const override { return 1; }

  void all_reduce(int, const void* in, void* out, std::size_t n, const Reduction& sum) override {
    touch(in, n * size_of(sum.dtype), out, n * size_of(sum.dtype));
  }
  void broadcast(int, void* buffer, std::size_t bytes, int) override {
    touch(buffer, bytes, buffer, bytes);
  }
  void all_gather(int, const void* in, void* out, const PerRank& of) override {
    touch(in, of.at(rank_), out, sum_of(of));
  }
  void reduce_scatter(
      int, const void* in, void* out, const PerRank& counts, const Reduction& sum) override {
    const std::size_t element = size_of(sum.dtype);
    touch(in, sum_of(counts) * element, out, counts.at(rank_) * element);
  }
  void all_to_all(
      int, const void* in, void* out, const PerRank& sent, const PerRank& received) override {
    AIACC_CHECK(sent.at(rank_) == received.at(rank_));
    touch(in, sum_of(sent), out, sum_of(received));
  }
  std::unique_ptr<Engine> split(const std::vector<int>&, std::uint32_t) override { return nullptr; }
  void abort(const Status&) noexcept override {}

 private:
  static std::size_t sum_of(const PerRank& parts) {
    return std::accumulate(parts.begin(), parts.end(), std::size_t{0});
  }
  static void touch(const void* in, std::size_t read, void* out, std::size_t written) {
    const std::vector<char> copy(static_cast<const char*>(in), static_cast<const char*>(in) + read);
    if (written > 0) {
      std::memset(out, 0, written);
    }
  }

  std::size_t rank_;
};

/// One rank with all its operations, without transport.
class LoneRank {
 public:
  LoneRank(int rank, int size)
      : rank_(rank), negotiator_(rank, size, 4, Parameters{0, kUnitBytes, 1}) {
    communicators_[0] = *negotiator_.process_sets().members(0);
  }

  Negotiator& negotiator() { return negotiator_; }

  /// Unless an operation of the name is on its way, or no rank may submit it.
  void submit(const Request& request) {
    const std::vector<int>* members = negotiator_.process_sets().members(request.process_set);
    const bool busy = std::any_of(operations_.begin(), operations_.end(), [&](const auto& entry) {
      return entry.second->request.name == request.name ||
             entry.second->request.kind == OpKind::kJoin;
    });
    if (busy || members == nullptr || index_in(*members, rank_) < 0) {
      return;
    }
    auto operation = std::make_unique<Operation>();
    std::vector<std::vector<char>>& memory = memory_[operation.get()];
    operation->request = request;
    check_request(request, *members);
    operation->buffers.resize(request.tensors.size());
    const std::size_t parts = request.kind == OpKind::kAllgather ? members->size() : 1;
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      memory.emplace_back(request.tensors[i].bytes());
      memory.emplace_back(request.tensors[i].bytes() * parts);
      operation->buffers[i].input = (memory.end() - 2)->data();
      operation->buffers[i].output = memory.back().data();
    }
    negotiator_.submit(*operation);
    Submitted* submitted = operation.get();
    operations_[submitted] = std::move(operation);
  }

  /// What came of the round, as text by label: equal on all ranks that took part.
  std::map<std::string, std::string> apply(const Bytes& combined) {
    std::map<std::string, std::string> results;
    for (const Response& response : negotiator_.apply(combined).ready) {
      if (response.zeros != nullptr) {
        Operation zeros;
        zeros.request = *response.zeros;
        zeros.buffers.resize(zeros.request.tensors.size());
        move(zeros, response, true);
        continue;
      }
      const auto found = operations_.find(response.submitted);
      EXPECT_NE(found, operations_.end()) << "it came back twice";
      const Request& request = found->second->request;
      results[label_of(request.process_set, request.name)] =
          std::to_string(static_cast<int>(response.status.code())) + response.status.message();
      if (response.status.ok() && adds_set(request.kind)) {
        communicators_[static_cast<std::uint32_t>(response.value)] = {request.numbers.begin(),
                                                                      request.numbers.end()};
      } else if (response.status.ok()) {
        move(*found->second, response, false);
      }
      memory_.erase(response.submitted);
      operations_.erase(found);
    }
    return results;
  }

 private:
  static constexpr std::uint64_t kUnitBytes = 64;
  /// Memory is only filled up to here; the sizes of what is larger are computed all the same.
  static constexpr std::uint64_t kMostMoved = 1 << 20;

  /// As the dispatcher does.
  void move(Operation& operation, const Response& response, bool allocate) {
    take_response(operation, response);
    if (is_empty(operation) || operation.request.on_gpu()) {
      return;
    }
    const std::vector<int>& members = communicators_.at(operation.request.process_set);
    const auto communicator = std::make_shared<Communicator>();
    communicator->ranks = members;
    communicator->rank = index_in(members, rank_);
    TouchingEngine engine(communicator->rank);
    communicator->engine = &engine;
    PlannerInput input;
    fill_planner_input({&operation}, false, 1, input);
    std::uint64_t total = 0;
    for (const PlannedTensor& tensor : input.tensors) {
      ASSERT_LE(tensor.bytes, members.size() * kMaxTensorBytes);
      total += tensor.bytes;
    }
    if (total > kMostMoved) {
      return;
    }
    std::vector<std::vector<char>> zeros;
    for (std::size_t i = 0; allocate && i < operation.request.tensors.size(); ++i) {
      zeros.emplace_back(operation.request.tensors[i].bytes());
      operation.buffers[i].input = zeros.back().data();
      operation.buffers[i].output = zeros.back().data();
    }
    LaneLoads loads(0);
    UnitPlan plan;
    plan_units(input.tensors, Parameters{0, kUnitBytes, 1}, 0, 1, loads, plan);
    PackBuffer buffer;
    for (const PlannedUnit& planned : plan) {
      Unit unit;
      unit.plan = planned;
      unit.communicator = communicator;
      for (const Slice& slice : planned.slices) {
        unit.pieces.push_back(input.pieces[slice.tensor]);
      }
      execute_unit(unit, 0, buffer);
    }
  }

  int rank_;
  Negotiator negotiator_;
  /// By id. What was agreed on before a set was removed still needs it.
  std::map<std::uint32_t, std::vector<int>> communicators_;
  std::map<Submitted*, std::unique_ptr<Operation>> operations_;
  std::map<Submitted*, std::vector<std::vector<char>>> memory_;
};

}  // namespace aiacc
