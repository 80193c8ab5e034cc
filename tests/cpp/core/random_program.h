#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/core/negotiation/process_set_table.h"
#include "csrc/core/negotiation/request.h"
#include "csrc/kernels/half.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {

// What all ranks of a job do, drawn from a seed, and what must come of it: a plain reference
// without threads, rounds, units or messages.

/// What the last member of a set asks for instead of the others.
struct Disagreement {
  const char* what;  ///< as it is called in the error
  std::function<void(Request&)> change;
};

inline const std::vector<Disagreement>& disagreements() {
  static const std::vector<Disagreement> all = {
      {"operation",
       [](Request& r) {
         r.kind = r.kind == OpKind::kAllgather ? OpKind::kBroadcast : OpKind::kAllgather;
         r.numbers.clear();
         r.wire = WireFormat::kTensor;
       }},
      {"number of tensors", [](Request& r) { r.tensors.push_back(r.tensors[0]); }},
      {"reduction op",
       [](Request& r) { r.op = r.op == ReduceOp::kAverage ? ReduceOp::kSum : ReduceOp::kAverage; }},
      {"prescale_factor", [](Request& r) { r.prescale *= 2; }},
      {"postscale_factor", [](Request& r) { r.postscale *= 0.5; }},
      {"wire format",
       [](Request& r) {
         r.wire = r.wire == WireFormat::kTensor ? WireFormat::kFloat16 : WireFormat::kTensor;
       }},
      {"dtype",
       [](Request& r) {
         r.tensors[0].dtype =
             r.tensors[0].dtype == DataType::kInt8 ? DataType::kUInt8 : DataType::kInt8;
       }},
      {"shape", [](Request& r) { r.tensors[0].shape.push_back(1); }},
      {"device", [](Request& r) { r.device = -1; }},
      {"root rank", [](Request& r) { r.root ^= 1; }}};
  return all;
}

/// What a world can do besides.
struct Abilities {
  bool gpus = false;           ///< some tensors are there
  bool wires_on_gpus = false;  ///< in formats that are for GPUs alone
  bool several_sets = true;
  std::vector<int> hosts;  ///< of the ranks, if those of one host share memory: nothing travels
};

/// One operation, as every member of its set knows it.
struct Step {
  Request request;
  std::size_t set = 0;  ///< of Program::sets
  /// Of each member: the rows of its first tensor, all-to-all: for every member. A group's next
  /// tensors have one more each.
  std::vector<std::vector<std::int64_t>> rows;
  bool in_place = false;
  bool on_gpu = false;
  bool lonely = false;  ///< the first member alone submits it
  const Disagreement* disagreement = nullptr;

  bool fails() const { return lonely || disagreement != nullptr; }
  bool gathers() const {
    return request.kind == OpKind::kAllgather || request.kind == OpKind::kAlltoall;
  }
  std::int64_t rows_of(std::size_t member, std::size_t tensor) const {
    const auto& own = rows[member];
    return std::accumulate(own.begin(), own.end(), std::int64_t{0}) +
           static_cast<std::int64_t>(tensor);
  }
};

struct SetOfRanks {
  std::vector<int> ranks;
  bool formed = false;  ///< by its members alone, not added by all ranks
};

struct Program {
  int size;
  Abilities abilities;
  int iterations = 3;
  bool fails = false;  ///< before it comes to its end
  std::vector<SetOfRanks> sets;
  std::vector<Step> steps;

  Program(int ranks, const Abilities& able, std::uint32_t seed)
      : size(ranks), abilities(able), random_(seed) {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    sets.push_back({all});
    for (std::size_t left = able.several_sets && ranks > 1 ? below(5) : 0; left > 0; --left) {
      draw_set(left % 2 == 0);
    }
    const std::size_t count = 5 + below(25);
    while (steps.size() < count) {
      draw_step();
    }
  }

  const std::vector<int>& members_of(const Step& step) const { return sets[step.set].ranks; }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  bool chance(std::size_t one_in) { return below(one_in) == 0; }
  template <class T, std::size_t N>
  const T& one_of(const T (&all)[N]) {
    return all[below(N)];
  }

  void draw_set(bool formed) {
    SetOfRanks set{{}, formed};
    for (const int rank : sets[0].ranks) {
      if (chance(2)) {
        set.ranks.push_back(rank);
      }
    }
    const bool taken = std::any_of(
        sets.begin(), sets.end(), [&](const auto& other) { return other.ranks == set.ranks; });
    if (!set.ranks.empty() && (formed || !taken)) {
      sets.push_back(set);
    }
  }

  void draw_step() {
    static constexpr DataType kTypes[] = {DataType::kFloat32,
                                          DataType::kFloat16,
                                          DataType::kBFloat16,
                                          DataType::kInt64,
                                          DataType::kInt32,
                                          DataType::kUInt8,
                                          DataType::kFloat64};
    static constexpr OpKind kKinds[] = {OpKind::kAllreduce,
                                        OpKind::kAllreduce,
                                        OpKind::kAllgather,
                                        OpKind::kBroadcast,
                                        OpKind::kBarrier,
                                        OpKind::kAlltoall,
                                        OpKind::kReducescatter};
    static constexpr std::int64_t kRows[] = {0, 1, 7, 64, 100, 1000, 5000, 20'001};
    Step step;
    step.set = below(sets.size());
    const std::vector<int>& members = members_of(step);
    Request& request = step.request;
    // The same name may be under way in several sets.
    request.name = "tensor" + std::to_string(steps.size() / 3);
    while (std::any_of(steps.begin(), steps.end(), [&](const Step& other) {
      return other.set == step.set && other.request.name == request.name;
    })) {
      request.name += "'";
    }
    request.kind = one_of(kKinds);
    request.tensors[0].dtype = one_of(kTypes);
    request.tensors[0].shape = {one_of(kRows), 1 + static_cast<int>(below(2))};
    step.in_place = chance(2);
    step.on_gpu = abilities.gpus && request.kind != OpKind::kBarrier && !chance(4);
    const bool reduces =
        request.kind == OpKind::kAllreduce || request.kind == OpKind::kReducescatter;
    if (reduces) {
      draw_reduction(request);
    }
    if (request.kind == OpKind::kAllreduce && request.tensors[0].dtype == DataType::kFloat32 &&
        chance(2)) {
      const std::size_t formats = abilities.wires_on_gpus && step.on_gpu ? 4 : 2;
      request.wire = static_cast<WireFormat>(1 + below(formats));
    }
    if (request.kind == OpKind::kBroadcast) {
      request.root = members[below(members.size())];
    } else if (request.kind == OpKind::kBarrier) {
      request.tensors[0].shape.clear();
    }
    draw_rows(step, one_of(kRows) % 1001, members.size());
    if (request.kind == OpKind::kAllreduce || request.kind == OpKind::kAllgather) {
      draw_group(request);
    }
    draw_trouble(step, members);
    steps.push_back(std::move(step));
  }

  void draw_reduction(Request& request) {
    static constexpr ReduceOp kOps[] = {
        ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
    request.op = request.kind == OpKind::kReducescatter ? kOps[below(2)] : one_of(kOps);
    if (request.op != ReduceOp::kProduct) {  // so that it fits into every type
      request.prescale = chance(4) ? 2.0 : 1.0;
      request.postscale = chance(4) ? 3.0 : 1.0;
    }
  }

  void draw_rows(Step& step, std::int64_t most, std::size_t members) {
    for (std::size_t member = 0; member < members; ++member) {
      std::vector<std::int64_t> own = {
          step.request.tensors[0].shape.empty() ? 0 : step.request.tensors[0].shape[0]};
      if (step.request.kind == OpKind::kAllgather) {
        own[0] = member > 0 && most % 2 == 1 ? step.rows[0][0] : static_cast<int>(below(1000));
      } else if (step.request.kind == OpKind::kAlltoall) {
        own.resize(members);
        for (std::int64_t& rows : own) {
          rows = most == 0 ? 0 : static_cast<std::int64_t>(below(static_cast<std::size_t>(most)));
        }
      }
      step.rows.push_back(std::move(own));
    }
  }

  void draw_group(Request& request) {
    static constexpr DataType kOthers[] = {DataType::kFloat64, DataType::kInt32, DataType::kUInt8};
    for (std::size_t left = chance(3) ? 1 + below(3) : 0; left > 0; --left) {
      TensorSpec tensor = request.tensors[0];
      tensor.shape[0] =
          request.tensors[0].shape[0] + static_cast<std::int64_t>(request.tensors.size());
      if (request.wire == WireFormat::kTensor && chance(2)) {
        tensor.dtype = one_of(kOthers);
      }
      request.tensors.push_back(tensor);
    }
  }

  /// Only of what the last member may submit, as far as it knows.
  void draw_trouble(Step& step, const std::vector<int>& members) {
    if (members.size() < 2 || !chance(8)) {
      return;
    }
    if (step.set != 0 && chance(3)) {
      step.lonely = true;
      return;
    }
    const Disagreement& found = disagreements()[below(disagreements().size())];
    const std::string what = found.what;
    const Request& request = step.request;
    const bool plain = request.kind == OpKind::kAllreduce && request.tensors.size() == 1;
    const bool allowed =
        what == "device"      ? step.on_gpu
        : what == "root rank" ? request.kind == OpKind::kAllreduce
        : what == "dtype"
            ? request.kind != OpKind::kBarrier && request.wire == WireFormat::kTensor
            : plain && (what != "wire format" || request.tensors[0].dtype == DataType::kFloat32);
    step.disagreement = allowed ? &found : nullptr;
  }

  std::mt19937 random_;
};

/// Element `index` of what `rank` gives for a tensor: 1 or 2, so that sums are exact in every type,
/// and as 8-bit floats for up to 4 ranks. What travels narrowly has a rest that only float16 keeps.
inline double given(const Step& step, int rank, std::size_t tensor, std::uint64_t index) {
  const std::size_t salt = step.request.name.back() + tensor;
  const std::uint64_t mixed = index * 3 + salt + static_cast<std::size_t>(rank) * 5;
  const bool rest = step.request.wire != WireFormat::kTensor && step.rows.size() <= 4 &&
                    step.request.op != ReduceOp::kProduct;
  return 1.0 + static_cast<double>(mixed % 7 % 2) + (rest ? 0x1p-8 : 0.0);
}

/// What travels of it.
inline double narrowed(double value, WireFormat wire) {
  const auto single = static_cast<float>(value);
  return wire == WireFormat::kTensor    ? value
         : wire == WireFormat::kFloat16 ? half_to_float(float_to_half(single))
                                        : std::floor(value);  // with its rest of less than a bit
}

/// An element of what the members reduce, before it is rounded to its type.
inline double reduced(const Program& program,
                      const Step& step,
                      std::size_t tensor,
                      std::uint64_t index) {
  const Request& request = step.request;
  const std::vector<int>& members = program.members_of(step);
  const auto host_of = [&](int rank) {
    const std::vector<int>& hosts = program.abilities.hosts;
    return hosts.empty() ? rank : hosts[static_cast<std::size_t>(rank)];
  };
  const bool travels = std::any_of(members.begin(), members.end(), [&](int rank) {
    return host_of(rank) != host_of(members.front());
  });
  double result = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    double one = given(step, members[i], tensor, index) * request.prescale;
    one = travels ? narrowed(one, request.wire) : one;
    result = i == 0                             ? one
             : request.op == ReduceOp::kMin     ? std::min(result, one)
             : request.op == ReduceOp::kMax     ? std::max(result, one)
             : request.op == ReduceOp::kProduct ? result * one
                                                : result + one;
  }
  const double average =
      request.op == ReduceOp::kAverage ? static_cast<double>(members.size()) : 1.0;
  return result * request.postscale / average;
}

/// What member `own` of the step's set gets for a tensor.
inline std::vector<double> expected(const Program& program,
                                    const Step& step,
                                    std::size_t own,
                                    std::size_t tensor) {
  const Request& request = step.request;
  const std::vector<int>& members = program.members_of(step);
  std::vector<double> result;
  const auto columns = static_cast<std::uint64_t>(
      request.tensors[0].shape.empty() ? 0 : request.tensors[0].shape[1]);
  const auto append = [&](std::int64_t first_row, std::int64_t rows, const auto& element) {
    const std::uint64_t first = static_cast<std::uint64_t>(first_row) * columns;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(rows) * columns; ++i) {
      result.push_back(element(first + i));
    }
  };
  const auto given_by = [&](int rank) {
    return [&step, rank, tensor](std::uint64_t i) { return given(step, rank, tensor, i); };
  };
  const auto sum = [&](std::uint64_t i) { return reduced(program, step, tensor, i); };
  const auto size = static_cast<int>(members.size());
  std::int64_t first = 0;
  switch (request.kind) {
    case OpKind::kAllreduce:
      append(0, step.rows_of(own, tensor), sum);
      break;
    case OpKind::kReducescatter:
      for (int before = 0; before < static_cast<int>(own); ++before) {
        first += scattered_rows(request.tensors[0].shape[0], size, before);
      }
      append(first, scattered_rows(request.tensors[0].shape[0], size, static_cast<int>(own)), sum);
      break;
    case OpKind::kBroadcast:
      append(0, request.tensors[0].shape[0], given_by(request.root));
      break;
    case OpKind::kAllgather:
      for (std::size_t from = 0; from < members.size(); ++from) {
        append(0, step.rows_of(from, tensor), given_by(members[from]));
      }
      break;
    case OpKind::kAlltoall:
      for (std::size_t from = 0; from < members.size(); ++from) {
        const auto& splits = step.rows[from];
        const auto mine = splits.begin() + static_cast<std::ptrdiff_t>(own);
        append(
            std::accumulate(splits.begin(), mine, std::int64_t{0}), *mine, given_by(members[from]));
      }
      break;
    default:
      break;
  }
  return result;
}

}  // namespace aiacc
