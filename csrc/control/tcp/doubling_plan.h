#pragma once

#include <vector>

#include "csrc/control/rank_block.h"

namespace aiacc {

/// The ranks of every host, ascending, hosts in the order of their lowest ranks. `host_of[r]` is
/// the host of rank r, any number that is equal for ranks of one host; empty: every rank is a host
/// of its own. Pure.
std::vector<std::vector<int>> ranks_by_host(const std::vector<int>& host_of, int size);

/// Who talks to whom in a round. Pure.
///
/// The lowest rank of a host speaks for it: the others fold their shares into its, and get the
/// result from it. Speakers exchange by recursive doubling: of H hosts the first p (p the largest
/// power of two) with host XOR 2^k in stage k; host p+i folds into host i before, and gets the
/// result after.
struct DoublingPlan {
  struct Partner {
    int rank = 0;
    RankBlock block;  ///< whose shares it has by then
  };

  std::vector<Partner> mates;  ///< the ranks of this host, ascending, this one among them
  std::vector<Partner> folds;  ///< who folds into this rank: its mates, if it speaks, and a speaker
  std::vector<Partner> stages;  ///< of each stage
  int proxy = -1;               ///< the rank that this one folds into, or -1

  /// Whether this rank is the lowest of its host.
  bool speaks() const { return proxy != mates.front().rank; }

  static DoublingPlan of(int rank, const std::vector<std::vector<int>>& hosts);

  /// All ranks that this one talks to.
  std::vector<int> partners() const;
};

}  // namespace aiacc
