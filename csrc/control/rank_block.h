#pragma once

#include <algorithm>
#include <limits>
#include <vector>

namespace aiacc {

/// Ranks whose shares one message may hold; all ranks, if nothing else is said.
class RankBlock {
 public:
  RankBlock() = default;
  /// These ranks, in any order; at least one.
  explicit RankBlock(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    runs_.clear();
    for (const int rank : ranks) {
      if (runs_.empty() || rank > runs_.back().last + 1) {
        runs_.push_back({rank, rank});
      }
      runs_.back().last = rank;
    }
  }

  /// Whether it has all ranks from `from` to `to`.
  bool has(int from, int to) const {
    const auto run = std::lower_bound(
        runs_.begin(), runs_.end(), to, [](const Run& r, int rank) { return r.last < rank; });
    return run != runs_.end() && run->first <= from;
  }
  /// No rank from this one on is in it.
  int end() const {
    const int last = runs_.back().last;
    return last == std::numeric_limits<int>::max() ? last : last + 1;
  }

 private:
  struct Run {
    int first;
    int last;
  };
  std::vector<Run> runs_{{0, std::numeric_limits<int>::max()}};
};

}  // namespace aiacc
