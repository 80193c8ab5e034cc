#include "csrc/core/negotiation/request_checks.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include "csrc/base/error.h"
#include "csrc/core/negotiation/process_set_table.h"
#include "csrc/core/negotiation/request_codec.h"
#include "csrc/core/negotiation/request_matching.h"
#include "csrc/engines/coding.h"

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

/// Its name comes later.
std::string join_problem(const Request& request) {
  return request.kind == OpKind::kJoin && (request.process_set != 0 || !request.name.empty())
             ? "a name or a process set (expected neither: join is of all ranks)"
             : "";
}

/// What is wrong with this rank's GPU; others may use other ones.
std::string device_problem(const Request& request) {
  return request.device < -1 || request.device >= static_cast<std::int64_t>(kMostDevices)
             ? "GPU " + std::to_string(request.device) +
                   " (expected this rank's number of a GPU, or -1 for host memory)"
             : "";
}

std::string op_problem(const Request& request, const std::vector<int>&) {
  if (request.kind == OpKind::kReducescatter && request.op != ReduceOp::kSum &&
      request.op != ReduceOp::kAverage) {
    return std::string("op=") + name_of(request.op) + " (expected Sum or Average)";
  }
  const bool reduces = request.kind == OpKind::kAllreduce || request.kind == OpKind::kReducescatter;
  const bool is_adasum = request.kind == OpKind::kAllreduce && request.op == ReduceOp::kAdasum;
  const bool is_average = reduces && request.op == ReduceOp::kAverage;
  for (const TensorSpec& tensor : request.tensors) {
    if (is_average && tensor.dtype == DataType::kBool) {
      return "op=Average of bool, whose average is no bool (expected Max, Sum: any; Min, Product: "
             "all; or another dtype); cast to float32 for the share of ranks, or give op=";
    }
    if (is_adasum && !is_floating(tensor.dtype)) {
      return std::string("op=Adasum of ") + name_of(tensor.dtype) +
             " (expected a floating-point dtype)";
    }
  }
  return "";
}

/// float32 is what the kernels can narrow.
std::string wire_problem(const Request& request, const std::vector<int>&) {
  if (request.wire == WireFormat::kTensor && request.wire_detail == 0) {
    return "";
  }
  const std::string wire = std::string("wire format ") + name_of(request.wire);
  const std::string problem = coding_problem(request.wire, request.wire_detail);
  if (!problem.empty()) {
    return wire + ": " + problem;
  }
  if (request.kind != OpKind::kAllreduce || request.op == ReduceOp::kAdasum) {
    return wire +
           " (expected an all-reduce, and not Adasum); use Compression.bf16, which casts the "
           "tensor there";
  }
  const bool sums = request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage;
  if (is_coded(request.wire) && !sums) {
    return wire + " with op=" + name_of(request.op) +
           " (expected Sum or Average); use Compression.bf16";
  }
  if (is_float8(request.wire) && !request.on_gpu()) {
    return wire +
           " in host memory (expected float16 or bfloat16, or tensors on GPUs); use "
           "Compression.bf16";
  }
  for (const TensorSpec& tensor : request.tensors) {
    if (tensor.dtype != DataType::kFloat32) {
      return wire + " for " + name_of(tensor.dtype) +
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

/// What is wrong with the rows that an all-to-all has for every member, out of `rows`.
std::string splits_problem(const std::int64_t* splits,
                           std::size_t count,
                           std::int64_t rows,
                           const std::vector<int>& members) {
  if (count != members.size()) {
    return std::to_string(count) + " splits (expected one per rank, " +
           std::to_string(members.size()) + ")";
  }
  std::int64_t left = rows;
  for (std::size_t i = 0; i < count; ++i) {
    if (splits[i] < 0) {
      return "splits " + shape_text({splits, splits + count}) + " (expected no negative one)";
    }
    if (splits[i] > left) {
      return "splits " + shape_text({splits, splits + count}) + " (expected a sum of at most " +
             std::to_string(rows) + ", the first dimension)";
    }
    left -= splits[i];
  }
  return "";
}

/// Ranks and ids of process sets, which no user writes as they are here.
std::string set_problem(const Request& request, const std::vector<int>& members) {
  const std::vector<std::int64_t>& numbers = request.numbers;
  // Such a request waits for the ranks that it tells: under the name of another operation that one
  // would do so, too.
  const bool has_its_name = request.name.rfind(kFormedNames, 0) == 0;
  if (has_its_name != (request.kind == OpKind::kFormProcessSet)) {
    return std::string("this name (expected one that begins with \"") + kFormedNames +
           "\" where a set is formed, and only there)";
  }
  if (request.kind == OpKind::kLeaveProcessSet && request.process_set == 0) {
    return "the set of all ranks (expected one that was formed)";
  }
  const bool removes = request.kind == OpKind::kRemoveProcessSet;
  if (!adds_set(request.kind) && !removes) {
    return numbers.empty() || request.kind == OpKind::kAlltoall
               ? ""
               : "numbers " + shape_text(numbers) + " (expected none)";
  }
  if (request.process_set != 0 || request.tensors.size() > 1) {
    return "a process set or a group (expected neither: its ranks are told as such)";
  }
  if (removes) {
    return numbers.size() == 1 && numbers.front() >= 0 &&
                   numbers.front() <= std::numeric_limits<std::uint32_t>::max()
               ? ""
               : "process sets " + shape_text(numbers) + " (expected one that was added)";
  }
  const bool ascend =
      std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) == numbers.end();
  return !numbers.empty() && ascend && numbers.front() >= 0 &&
                 numbers.back() < static_cast<std::int64_t>(members.size())
             ? ""
             : "ranks " + shape_text(numbers) + " (expected different ones of 0.." +
                   std::to_string(members.size() - 1) + ", ascending)";
}

/// With `rows` in place of the tensors' first extents, unless that is null.
std::string bytes_problem(const Request& request, const std::int64_t* rows) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorSpec& tensor = request.tensors[i];
    std::uint64_t bytes = size_of(tensor.dtype);
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      const std::int64_t extent = d == 0 && rows != nullptr ? rows[i] : tensor.shape[d];
      if (extent < 0 || static_cast<std::uint64_t>(extent) > kMaxTensorBytes / bytes) {
        std::vector<std::int64_t> shape = tensor.shape;
        shape.front() = rows != nullptr ? rows[i] : shape.front();
        return "shape " + shape_text(shape) + " (expected at most " +
               std::to_string(kMaxTensorBytes) + " bytes)";
      }
      bytes *= std::max(static_cast<std::uint64_t>(extent), std::uint64_t{1});
    }
    total += bytes;
    if (total > kMaxTensorBytes) {
      return "a group of " + std::to_string(request.tensors.size()) +
             " tensors (expected at most " + std::to_string(kMaxTensorBytes) + " bytes)";
    }
  }
  return "";
}

std::string size_problem(const Request& request) {
  if (request.name.size() > kMaxNameBytes) {
    return "a name of " + std::to_string(request.name.size()) + " bytes (expected at most " +
           std::to_string(kMaxNameBytes) + ")";
  }
  if (request.tensors.size() > kMaxGroupTensors) {
    return "a group of " + std::to_string(request.tensors.size()) + " tensors (expected at most " +
           std::to_string(kMaxGroupTensors) + ")";
  }
  for (const TensorSpec& tensor : request.tensors) {
    const std::size_t dimensions = tensor.shape.size();
    if (dimensions > kMaxDimensions) {
      return std::to_string(dimensions) + " dimensions (expected at most " +
             std::to_string(kMaxDimensions) + ")";
    }
    if (dimensions == 0 && has_rows(request.kind)) {
      return "a 0-dimensional tensor (expected at least 1 dimension, whose rows are distributed or "
             "concatenated; reshape it to [1])";
    }
  }
  return bytes_problem(request, nullptr);
}

/// What the ranks cannot agree on in one round.
std::string travel_problem(const Request& request, const std::vector<int>& members) {
  std::size_t text = request.name.size();  // at most: what Writer makes of it
  for (const TensorSpec& tensor : request.tensors) {
    text += 3 + 10 * tensor.shape.size();
  }
  if (text > kMaxTextBytes) {
    return "names and shapes of up to " + std::to_string(text) + " bytes (expected at most " +
           std::to_string(kMaxTextBytes) +
           ", which a rank can tell the others at once); submit fewer tensors in a group";
  }
  const std::size_t own = part_bytes(own_part(request));
  if (own > kMaxPartsBytes / members.size()) {
    return "rows and splits that take " + std::to_string(own) +
           " bytes to tell (expected at most " + std::to_string(kMaxPartsBytes / members.size()) +
           " on each of " + std::to_string(members.size()) +
           " ranks, which can be agreed on at once); submit fewer tensors in a group, or let fewer "
           "ranks take part";
  }
  return "";
}

std::string first_problem(const Request& request, const std::vector<int>& members) {
  std::string problem = size_problem(request);
  for (auto* check : {&root_problem, &op_problem, &set_problem, &wire_problem}) {
    if (problem.empty()) {
      problem = check(request, members);
    }
  }
  return problem;
}

}  // namespace

void check_request(const Request& request, const std::vector<int>& members) {
  std::string problem = first_problem(request, members);
  if (problem.empty()) {
    problem = device_problem(request);
  }
  if (problem.empty()) {
    problem = travel_problem(request, members);
  }
  if (problem.empty() && request.kind == OpKind::kAlltoall) {
    problem = splits_problem(request.numbers.data(),
                             request.numbers.size(),
                             request.tensors.front().shape.front(),
                             members);
  }
  if (problem.empty()) {
    problem = join_problem(request);
  }
  Code code = Code::kInvalidArgument;
  if (problem.empty()) {
    problem = unsupported(request, members);
    code = Code::kUnsupported;
  }
  if (!problem.empty()) {
    throw Error(code, "[submit] " + operation_text(request) + ": " + problem);
  }
}

std::string common_problem(const Request& common, const std::vector<int>& members) {
  std::string problem = first_problem(common, members);
  if (problem.empty() && common.kind == OpKind::kJoin &&
      (common.process_set != 0 || common.tensors.size() > 1)) {
    problem = "a process set or a group (expected neither: join is of all ranks)";
  }
  if (problem.empty() && common.cacheable && changes_sets(common.kind)) {
    problem = "a slot (expected none: it is not the same the next time)";
  }
  return problem.empty() ? unsupported(common, members) : problem;
}

std::string part_problem(const Request& common,
                         const OwnPart& part,
                         const std::vector<int>& members) {
  if (!fits(common, part)) {
    return "rows or a GPU of another operation";
  }
  if (common.kind != OpKind::kAllgather && common.kind != OpKind::kAlltoall) {
    return "";
  }
  std::string problem = bytes_problem(common, part.numbers.data());
  if (problem.empty() && common.kind == OpKind::kAlltoall) {
    problem = splits_problem(
        part.numbers.data() + 1, part.numbers.size() - 1, part.numbers.front(), members);
  }
  return problem;
}

void check_message(const Request& request, const std::string& key, int size) {
  const std::vector<std::int64_t>& shape = request.tensors.front().shape;
  const std::int64_t bytes = shape.empty() ? -1 : shape.front();
  const bool any = request.kind == OpKind::kReceive && request.root == -1;
  std::string problem;
  if (request.root < (any ? -1 : 0) || request.root >= size) {
    problem = "rank " + std::to_string(request.root) + " (expected 0.." + std::to_string(size - 1) +
              (request.kind == OpKind::kReceive ? ", or -1 for any)" : ")");
  } else if (bytes < 0 || static_cast<std::uint64_t>(bytes) > kMaxTensorBytes) {
    problem =
        std::to_string(bytes) + " bytes (expected 0.." + std::to_string(kMaxTensorBytes) + ")";
  } else if (key.empty() || key.size() > kMaxMessageKeyBytes) {
    problem = "a key of " + std::to_string(key.size()) + " bytes (expected 1.." +
              std::to_string(kMaxMessageKeyBytes) + ")";
  }
  if (!problem.empty()) {
    throw Error(Code::kInvalidArgument,
                "[submit] " + operation_text(request.kind, 0, key) + ": " + problem);
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
