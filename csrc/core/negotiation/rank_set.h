#pragma once

#include <cstddef>
#include <vector>

#include "csrc/core/negotiation/byte_io.h"

namespace aiacc {

/// As many ranks as a job can have (AIACC_SIZE).
inline constexpr int kMostRanks = 1 << 16;

/// Ranks, as runs of neighbours: all ranks of a job take as much memory as one. Pure.
class RankSet {
 public:
  /// `first` and `last` belong to it.
  struct Run {
    int first = 0;
    int last = 0;
  };

  RankSet() = default;
  explicit RankSet(int rank) : runs_{{rank, rank}} {}
  RankSet(int first, int last) : runs_{{first, last}} {}
  /// Those of a list.
  template <typename Ranks>
  static RankSet of(const Ranks& ranks) {
    RankSet set;
    for (const auto rank : ranks) {
      set.add(static_cast<int>(rank));
    }
    return set;
  }

  bool empty() const { return runs_.empty(); }
  std::size_t count() const;
  /// Lowest and highest rank; it must not be empty.
  int first() const { return runs_.front().first; }
  int last() const { return runs_.back().last; }
  bool has(int rank) const;
  /// Whether some rank is in both.
  bool meets(const RankSet& other) const;
  /// Whether all of it is in the block.
  bool within(const RankBlock& block) const;
  void add(int rank) { empty() || last() < rank ? append({rank, rank}) : add(RankSet(rank)); }
  void add(const RankSet& other);
  /// Those that are not in the other.
  RankSet without(const RankSet& other) const;

  /// Calls visit(rank) for every rank, ascending.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Run& run : runs_) {
      for (int rank = run.first; rank <= run.last; ++rank) {
        visit(rank);
      }
    }
  }
  std::vector<int> ranks() const;

  /// As runs or as bits, whichever is shorter: one form for each set.
  void encode(Writer& writer) const;
  /// Throws Error(kPeerLost) for an empty set and for ranks from `size` on, that of the job: bits
  /// may take 32 times as much memory as they have bytes.
  static RankSet decode(Reader& reader, int size = kMostRanks);

  friend bool operator==(const RankSet& a, const RankSet& b);

 private:
  void append(Run run);

  std::vector<Run> runs_;  ///< ascending, with gaps between them
};

inline bool operator!=(const RankSet& a, const RankSet& b) { return !(a == b); }

}  // namespace aiacc
