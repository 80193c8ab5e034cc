#pragma once

#include <cstddef>
#include <vector>

#include "csrc/engines/engine_context.h"

namespace aiacc {

/// How ranks lie on hosts, for an engine that treats the two levels differently.
///
/// As many ranks of every host as the smallest host has talk to other hosts: rank number c of a
/// host to those with the same number, in *column* c. Pure: follows from `host_of` alone.
class HostTopology {
 public:
  /// `host_of[r]` is the host of rank r, any number that is equal for ranks of one host.
  explicit HostTopology(const std::vector<int>& host_of);

  int hosts() const { return static_cast<int>(ranks_on_.size()); }
  int columns() const { return columns_; }
  /// Whether all hosts have as many ranks: then every rank is in a column.
  bool even() const {
    return host_.size() == ranks_on_.size() * static_cast<std::size_t>(columns_);
  }

  /// Hosts are renumbered in the order of their lowest ranks.
  int host(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  /// Index of a rank among those of its host.
  int local(int rank) const { return local_[static_cast<std::size_t>(rank)]; }
  /// The ranks of a host, ascending.
  const std::vector<int>& ranks_on(int host) const {
    return ranks_on_[static_cast<std::size_t>(host)];
  }
  /// The ranks of a column, ascending: not in the order of hosts.
  std::vector<int> column(int number) const;
  /// Index in `column(number)` of the rank that is on `host`.
  int index_in_column(int number, int host) const;

 private:
  std::vector<int> host_;
  std::vector<int> local_;
  std::vector<std::vector<int>> ranks_on_;
  int columns_ = 0;
};

/// Throws Error(kInvalidArgument) if `context.host_of` does not name the host of every rank.
void check_hosts(const EngineContext& context);

}  // namespace aiacc
