#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace aiacc {

/// Which ranks belong to which process set.
///
/// A replicated table: every rank applies the same calls in the same order, so ids agree without a
/// message. Set 0 is all ranks and stays. Ids are never used again, so what was meant for a removed
/// set cannot reach another. Pure; one thread at a time.
class ProcessSetTable {
 public:
  explicit ProcessSetTable(int size);

  /// Registers a set of `ranks`, ascending, and returns its id.
  std::uint32_t add(std::vector<int> ranks);
  /// The same for one that its members have formed alone, of which there may be several alike.
  std::uint32_t form(std::vector<int> ranks);
  /// False if there is no such set, or it is set 0.
  bool remove(std::uint32_t id);

  /// With the one of all ranks.
  std::size_t size() const { return sets_.size(); }
  /// Null for an unknown set.
  const std::vector<int>* members(std::uint32_t id) const;
  /// Index of `rank` among the members; -1 for a rank outside and for an unknown set.
  int index_of(std::uint32_t id, int rank) const;
  /// The set of exactly these ranks, ascending, that was added and not formed.
  std::optional<std::uint32_t> find(const std::vector<int>& ranks) const;

 private:
  struct Set {
    std::vector<int> ranks;
    bool formed = false;
  };
  std::map<std::uint32_t, Set> sets_;
  std::uint32_t next_ = 1;
};

/// Index of `rank` in the ascending list `ranks`; -1 if it is not there.
int index_in(const std::vector<int>& ranks, int rank);

}  // namespace aiacc
