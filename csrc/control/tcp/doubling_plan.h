#pragma once

#include <vector>

#include "csrc/control/control_plane.h"

namespace aiacc {

/// Who talks to whom in recursive doubling over `size` ranks. Pure.
///
/// The first p ranks (p the largest power of two) exchange with rank XOR 2^k in stage k; rank p+i
/// folds its share into rank i before, and gets the result after.
struct DoublingPlan {
  std::vector<int> stages;        ///< partner of each stage; empty for ranks >= p
  std::vector<RankBlock> blocks;  ///< whose shares the partner has by then
  int extra = -1;                 ///< the rank that folds into this one, or -1
  int proxy = -1;                 ///< the rank that this one folds into, or -1

  static DoublingPlan of(int rank, int size);
};

}  // namespace aiacc
