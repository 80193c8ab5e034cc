#include "csrc/core/check_request.h"

#include <algorithm>
#include <string>

#include "csrc/base/error.h"
#include "csrc/core/process_sets.h"
#include "csrc/core/validate.h"

namespace aiacc {
namespace {

std::string ranks_text(const std::vector<int>& ranks) {
  return shape_text({ranks.begin(), ranks.end()});
}

std::string root_problem(const Request& request, const std::vector<int>& members) {
  if (request.kind != OpKind::kBroadcast || index_in(members, request.root) >= 0) {
    return "";
  }
  return "root_rank " + std::to_string(request.root) +
         (request.process_set == 0
              ? " (expected 0.." + std::to_string(members.size() - 1) + ")"
              : " (expected a global rank of process set " + std::to_string(request.process_set) +
                    ", " + ranks_text(members) + ")");
}

std::string join_problem(const Request& request, const std::vector<int>&) {
  return request.kind == OpKind::kJoin && (request.process_set != 0 || !request.name.empty())
             ? "a name or a process set (expected neither: join is of all ranks)"
             : "";
}

std::string op_problem(const Request& request, const std::vector<int>&) {
  if (request.kind == OpKind::kReducescatter && request.op != ReduceOp::kSum &&
      request.op != ReduceOp::kAverage) {
    return std::string("op=") + name_of(request.op) + " (expected Sum or Average)";
  }
  if (request.kind != OpKind::kAllreduce || request.op != ReduceOp::kAdasum) {
    return "";
  }
  for (std::size_t i = 0; i < request.tensors(); ++i) {
    if (!is_floating(request.tensor(i).dtype)) {
      return std::string("op=Adasum of ") + name_of(request.tensor(i).dtype) +
             " (expected a floating-point dtype)";
    }
  }
  return "";
}

/// float32 is what the kernels can narrow.
std::string wire_problem(const Request& request, const std::vector<int>&) {
  if (request.wire == WireFormat::kTensor) {
    return "";
  }
  const std::string wire = std::string("wire format ") + name_of(request.wire);
  if (request.kind != OpKind::kAllreduce || !request.on_gpu() || request.op == ReduceOp::kAdasum) {
    return wire +
           " (expected an all-reduce of tensors on GPUs, and not Adasum); use Compression.bf16, "
           "which casts the tensor there";
  }
  for (std::size_t i = 0; i < request.tensors(); ++i) {
    if (request.tensor(i).dtype != DataType::kFloat32) {
      return wire + " for " + name_of(request.tensor(i).dtype) +
             " (expected float32); leave it as it is, in a group of its own";
    }
  }
  return "";
}

std::string unsupported(const Request& request, const std::vector<int>& members) {
  const bool is_adasum = request.kind == OpKind::kAllreduce && request.op == ReduceOp::kAdasum;
  return is_adasum && (members.size() & (members.size() - 1)) != 0
             ? "op=Adasum over " + std::to_string(members.size()) +
                   " ranks (expected a power of two); use Average, or a process set of so many"
             : "";
}

std::string splits_problem(const Request& request, const std::vector<int>& members) {
  if (request.kind != OpKind::kAlltoall) {
    return "";
  }
  if (request.numbers.size() != members.size()) {
    return std::to_string(request.numbers.size()) + " splits (expected one per rank, " +
           std::to_string(members.size()) + ")";
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : request.numbers) {
    if (split < 0) {
      return "splits " + shape_text(request.numbers) + " (expected no negative one)";
    }
    if (split > request.shape.front() - sum) {
      return "splits " + shape_text(request.numbers) + " (expected a sum of at most " +
             std::to_string(request.shape.front()) + ", the first dimension)";
    }
    sum += split;
  }
  return "";
}

std::string size_problem(const Request& request) {
  if (request.name.size() > kMaxNameBytes) {
    return "a name of " + std::to_string(request.name.size()) + " bytes (expected at most " +
           std::to_string(kMaxNameBytes) + ")";
  }
  if (request.more.size() > kMaxGroup) {
    return "a group of " + std::to_string(request.tensors()) + " tensors (expected at most " +
           std::to_string(kMaxGroup + 1) + ")";
  }
  for (std::size_t i = 0; i < request.tensors(); ++i) {
    const std::size_t dimensions = request.tensor(i).shape.size();
    if (dimensions > kMaxDimensions) {
      return std::to_string(dimensions) + " dimensions (expected at most " +
             std::to_string(kMaxDimensions) + ")";
    }
    if (dimensions == 0 && has_rows(request.kind)) {
      return "a 0-dimensional tensor (expected at least 1 dimension, whose rows are distributed or "
             "concatenated; reshape it to [1])";
    }
  }
  return "";
}

}  // namespace

void check_request(const Request& request, const std::vector<int>& members) {
  std::string problem = size_problem(request);
  for (auto* check : {&root_problem, &op_problem, &splits_problem, &join_problem, &wire_problem}) {
    if (problem.empty()) {
      problem = check(request, members);
    }
  }
  Code code = Code::kInvalidArgument;
  if (problem.empty()) {
    problem = unsupported(request, members);
    code = Code::kUnsupported;
  }
  if (!problem.empty()) {
    throw Error(code,
                "[submit] " + std::string(name_of(request.kind)) + " '" +
                    label_of(request.process_set, request.name.substr(0, 100)) + "': " + problem);
  }
}

void check_ranks(std::vector<int>& ranks, int size) {
  std::sort(ranks.begin(), ranks.end());
  std::string problem;
  if (ranks.empty()) {
    problem = "no rank";
  } else if (ranks.front() < 0 || ranks.back() >= size) {
    problem = "a rank that does not exist";
  } else if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    problem = "a rank twice";
  }
  if (!problem.empty()) {
    throw Error(Code::kInvalidArgument,
                "[process set] ranks " + ranks_text(ranks) + ": " + problem +
                    " (expected different ranks of 0.." + std::to_string(size - 1) + ")");
  }
}

}  // namespace aiacc
