#include "csrc/core/validate.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
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

bool same_shape(const Request& a, const Request& b) {
  if (a.kind != OpKind::kAllgather) {
    return a.shape == b.shape;
  }
  // The first dimension of an all-gather may differ per rank.
  return a.shape.size() == b.shape.size() &&
         (a.shape.empty() || std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1));
}

const std::vector<Check>& checks() {
  static const std::vector<Check> table = {
      {"operation",
       [](const Request& r) { return std::string(name_of(r.kind)); },
       [](const Request& a, const Request& b) { return a.kind == b.kind; }},
      {"dtype",
       [](const Request& r) { return std::string(name_of(r.dtype)); },
       [](const Request& a, const Request& b) { return a.dtype == b.dtype; }},
      {"shape", [](const Request& r) { return shape_text(r.shape); }, same_shape},
      {"reduction op",
       [](const Request& r) { return std::string(name_of(r.op)); },
       [](const Request& a, const Request& b) { return a.op == b.op; }},
      {"root rank",
       [](const Request& r) { return std::to_string(r.root); },
       [](const Request& a, const Request& b) { return a.root == b.root; }},
      {"prescale_factor",
       [](const Request& r) { return number_text(r.prescale); },
       [](const Request& a, const Request& b) { return a.prescale == b.prescale; }},
      {"postscale_factor",
       [](const Request& r) { return number_text(r.postscale); },
       [](const Request& a, const Request& b) { return a.postscale == b.postscale; }},
      {"process set",
       [](const Request& r) { return std::to_string(r.process_set); },
       [](const Request& a, const Request& b) { return a.process_set == b.process_set; }},
      {"device",
       [](const Request& r) {
         return r.device < 0 ? std::string("cpu") : "gpu " + std::to_string(r.device);
       },
       [](const Request& a, const Request& b) { return (a.device < 0) == (b.device < 0); }},
  };
  return table;
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return text + "]";
}

Status validate(const std::vector<Request>& by_rank) {
  const Request& first = by_rank.front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    for (const Check& check : checks()) {
      if (!check.same(first, by_rank[rank])) {
        return {Code::kMismatch,
                "[negotiation] tensor '" + first.name + "': rank 0 submitted " + check.what + " " +
                    check.text(first) + ", rank " + std::to_string(rank) + " submitted " +
                    check.what + " " + check.text(by_rank[rank]) + "; all ranks must agree on it" +
                    (first.kind == OpKind::kAllgather && std::string(check.what) == "shape"
                         ? " (only the first dimension may differ)"
                         : "")};
      }
    }
  }
  return {};
}

}  // namespace aiacc
