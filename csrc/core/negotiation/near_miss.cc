#include "csrc/core/negotiation/near_miss.h"

#include <algorithm>
#include <map>

namespace aiacc {
namespace {

/// Whether a name may begin with this: "allreduce", "grouped_allreduce", "sparse_allreduce".
bool is_kind(const std::string& head) {
  for (int kind = 0; kind < kOpKinds; ++kind) {
    const std::string name = name_of(static_cast<OpKind>(kind));
    if (head == name || head == "grouped_" + name || head == "sparse_" + name) {
      return true;
    }
  }
  return false;
}

/// "x" of "allreduce.x"; empty for other names and for automatic ones.
std::string name_within(const std::string& label) {
  const std::size_t dot = label.find('.');
  if (dot == std::string::npos || !is_kind(label.substr(0, dot))) {
    return "";
  }
  std::string name = label.substr(dot + 1);
  return name.rfind("noname.", 0) == 0 ? "" : name;
}

bool has_other(const RankSet& a, const RankSet& b) {
  const std::vector<int> ranks = a.ranks();
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return !b.has(rank); });
}

}  // namespace

std::vector<NearMiss> near_misses(const Answers& answers) {
  std::map<std::string, std::vector<const PendingName*>> by_name;
  for (const PendingName& operation : answers.names) {
    if (std::string name = name_within(operation.label); !name.empty()) {
      by_name[std::move(name)].push_back(&operation);
    }
  }
  std::vector<NearMiss> misses;
  for (const auto& [name, operations] : by_name) {
    NearMiss miss{name, {}};
    for (const PendingName* one : operations) {
      if (std::any_of(operations.begin(), operations.end(), [&](const PendingName* other) {
            return has_other(one->ranks, other->ranks) && has_other(other->ranks, one->ranks);
          })) {
        miss.operations.push_back(*one);
      }
    }
    if (!miss.operations.empty()) {
      misses.push_back(std::move(miss));
    }
  }
  return misses;
}

}  // namespace aiacc
