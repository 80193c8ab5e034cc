#include "csrc/core/negotiation/request_matching.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace aiacc {
namespace {

/// Short, but different for different values.
std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", value);
  if (std::strtod(text, nullptr) != value) {
    std::snprintf(text, sizeof text, "%.17g", value);
  }
  return text;
}

/// One property on which all ranks must agree.
struct Check {
  const char* what;
  std::function<std::string(const Request&)> text;
  std::function<bool(const Request&, const Request&)> same;
};

/// Two values that differ, as text.
struct Difference {
  std::string what;
  std::string first;
  std::string other;
  std::string hint;
};

/// The first dimension of an all-gather and of an all-to-all may differ per rank.
bool first_dimension_differs(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
}

/// Factors of these multiply nothing; see factor_of in aiacc/collectives/dtypes.py.
bool only_moves(OpKind kind) { return first_dimension_differs(kind) || kind == OpKind::kBroadcast; }

bool same_shape(OpKind kind, const TensorSpec& a, const TensorSpec& b) {
  if (!first_dimension_differs(kind)) {
    return a.shape == b.shape;
  }
  return a.shape.size() == b.shape.size() &&
         (a.shape.empty() || std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1));
}

const std::vector<Check>& checks() {
  static const std::vector<Check> table = {
      {"name",  // of one digest
       [](const Request& r) { return "'" + r.name + "'"; },
       [](const Request& a, const Request& b) { return a.name == b.name; }},
      {"operation",
       [](const Request& r) { return std::string(name_of(r.kind)); },
       [](const Request& a, const Request& b) { return a.kind == b.kind; }},
      {"number of tensors",
       [](const Request& r) { return std::to_string(r.tensors.size()); },
       [](const Request& a, const Request& b) { return a.tensors.size() == b.tensors.size(); }},
      {"reduction op",
       [](const Request& r) { return std::string(name_of(r.op)); },
       [](const Request& a, const Request& b) { return a.op == b.op; }},
      {"root rank",
       [](const Request& r) { return std::to_string(r.root); },
       [](const Request& a, const Request& b) { return a.root == b.root; }},
      {"prescale_factor",
       [](const Request& r) { return number_text(r.prescale); },
       [](const Request& a, const Request& b) {
         return only_moves(a.kind) || same_factor(a.prescale, b.prescale);
       }},
      {"postscale_factor",
       [](const Request& r) { return number_text(r.postscale); },
       [](const Request& a, const Request& b) { return same_factor(a.postscale, b.postscale); }},
      {"wire format",
       [](const Request& r) {
         return name_of(r.wire) +
                (is_coded(r.wire) ? " " + std::to_string(r.wire_detail) : std::string());
       },
       [](const Request& a, const Request& b) {
         return a.wire == b.wire && a.wire_detail == b.wire_detail;
       }},
      {"process set",
       [](const Request& r) { return shape_text(r.numbers); },
       [](const Request& a, const Request& b) {
         return a.kind == OpKind::kAlltoall || a.numbers == b.numbers;
       }},
      {"device",
       [](const Request& r) {
         return r.device < 0 ? std::string("cpu") : "gpu " + std::to_string(r.device);
       },
       [](const Request& a, const Request& b) { return a.on_gpu() == b.on_gpu(); }},
  };
  return table;
}

std::optional<Difference> difference(const Request& a, const Request& b) {
  for (const Check& check : checks()) {
    if (!check.same(a, b)) {
      return Difference{check.what, check.text(a), check.text(b), ""};
    }
  }
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const TensorSpec& first = a.tensors[i];
    const TensorSpec& other = b.tensors[i];
    const std::string of = a.tensors.size() > 1 ? " of tensor " + std::to_string(i) : "";
    if (first.dtype != other.dtype) {
      return Difference{"dtype" + of, name_of(first.dtype), name_of(other.dtype), ""};
    }
    if (!same_shape(a.kind, first, other)) {
      return Difference{
          "shape" + of,
          shape_text(first.shape),
          shape_text(other.shape),
          first_dimension_differs(a.kind) ? " (only the first dimension may differ)" : ""};
    }
  }
  if (!same_factor(a.prescale, b.prescale)) {
    return Difference{"dtype (a digest)",
                      number_text(a.prescale),
                      number_text(b.prescale),
                      " (elements are of equal size, and not of one dtype)"};
  }
  return std::nullopt;
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return text + "]";
}

Status validate(const std::vector<Request>& requests, const std::vector<int>& ranks) {
  const Request& first = requests.front();
  for (std::size_t i = 1; i < requests.size(); ++i) {
    if (const auto found = difference(first, requests[i])) {
      return {Code::kMismatch,
              "[negotiation] tensor '" + label_of(first.process_set, first.name) + "': rank " +
                  std::to_string(ranks.front()) + " submitted " + found->what + " " + found->first +
                  ", rank " + std::to_string(ranks[i]) + " submitted " + found->what + " " +
                  found->other + "; all ranks must agree on it" + found->hint};
    }
  }
  return {};
}

}  // namespace aiacc
