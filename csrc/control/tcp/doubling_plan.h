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
  std::vector<int> stages;        ///< partner of each stage
  std::vector<RankBlock> blocks;  ///< whose shares the partner has by then
  std::vector<int> members;       ///< the other ranks of this host, if this one speaks for it
  int extra = -1;                 ///< the speaker that folds into this one, or -1
  RankBlock extra_block;          ///< whose shares that one has
  int proxy = -1;                 ///< the rank that this one folds into, or -1

  static DoublingPlan of(int rank, const std::vector<std::vector<int>>& hosts);

  /// All ranks that this one talks to.
  std::vector<int> partners() const;
};

}  // namespace aiacc
