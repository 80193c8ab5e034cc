#include "csrc/core/negotiation/request.h"

#include <cmath>

#include "csrc/base/text.h"

namespace aiacc {
namespace {

std::uint64_t product(std::vector<std::int64_t>::const_iterator first,
                      std::vector<std::int64_t>::const_iterator last) {
  std::uint64_t result = 1;
  for (; first != last; ++first) {
    result *= static_cast<std::uint64_t>(*first);
  }
  return result;
}

}  // namespace

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAllreduce:
      return "allreduce";
    case OpKind::kAllgather:
      return "allgather";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kAlltoall:
      return "alltoall";
    case OpKind::kReducescatter:
      return "reducescatter";
    case OpKind::kJoin:
      return "join";
    case OpKind::kAddProcessSet:
      return "add_process_set";
    case OpKind::kRemoveProcessSet:
      return "remove_process_set";
    case OpKind::kFormProcessSet:
      return "form_process_set";
    case OpKind::kLeaveProcessSet:
      return "leave_process_set";
    case OpKind::kSend:
      return "send";
    case OpKind::kReceive:
      return "receive";
  }
  return "unknown";
}

std::uint64_t TensorSpec::elements() const { return product(shape.begin(), shape.end()); }

std::uint64_t TensorSpec::row_elements() const { return product(shape.begin() + 1, shape.end()); }

bool operator==(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.shape == b.shape;
}

std::uint64_t Request::total_bytes() const {
  std::uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) {
    total += tensor.bytes();
  }
  return total;
}

bool same_factor(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool same_signature(const Request& a, const Request& b) {
  return a.kind == b.kind && a.op == b.op && a.root == b.root && a.on_gpu() == b.on_gpu() &&
         a.process_set == b.process_set && same_factor(a.prescale, b.prescale) &&
         same_factor(a.postscale, b.postscale) && a.wire == b.wire &&
         a.wire_detail == b.wire_detail && a.tensors == b.tensors && a.numbers == b.numbers;
}

std::uint32_t set_to_remove(const Request& request) {
  return request.kind == OpKind::kLeaveProcessSet
             ? request.process_set
             : static_cast<std::uint32_t>(request.numbers.front());
}

bool joinable(const Request& request) {
  return request.kind == OpKind::kAllreduce && request.process_set == 0 &&
         (request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage ||
          request.op == ReduceOp::kAdasum);
}

std::string label_of(std::uint32_t process_set, const std::string& name) {
  return process_set == 0 ? name : name + " (process set " + std::to_string(process_set) + ")";
}

std::string operation_text(OpKind kind, std::uint32_t process_set, const std::string& name) {
  constexpr std::size_t kMostBytes = 100;
  if (!name.empty()) {
    return std::string(name_of(kind)) + " '" + label_of(process_set, cut_text(name, kMostBytes)) +
           "'";
  }
  const bool may_have_one =
      kind != OpKind::kBarrier && kind != OpKind::kJoin && !changes_sets(kind);
  return label_of(process_set, std::string(may_have_one ? "an unnamed " : "") + name_of(kind));
}

std::int64_t scattered_rows(std::int64_t rows, int size, int index) {
  return rows / size + (index < rows % size ? 1 : 0);
}

}  // namespace aiacc
