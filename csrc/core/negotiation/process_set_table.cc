#include "csrc/core/negotiation/process_set_table.h"

#include <algorithm>
#include <utility>

#include "csrc/engines/members.h"

namespace aiacc {

ProcessSetTable::ProcessSetTable(int size) { sets_.emplace(0, all_ranks(size)); }

std::uint32_t ProcessSetTable::add(std::vector<int> ranks) {
  sets_.emplace(next_, std::move(ranks));
  return next_++;
}

bool ProcessSetTable::remove(std::uint32_t id) { return id != 0 && sets_.erase(id) == 1; }

const std::vector<int>* ProcessSetTable::members(std::uint32_t id) const {
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : &found->second;
}

int ProcessSetTable::index_of(std::uint32_t id, int rank) const {
  const std::vector<int>* ranks = members(id);
  return ranks == nullptr ? -1 : index_in(*ranks, rank);
}

std::optional<std::uint32_t> ProcessSetTable::find(const std::vector<int>& ranks) const {
  for (const auto& [id, members] : sets_) {
    if (members == ranks) {
      return id;
    }
  }
  return std::nullopt;
}

int index_in(const std::vector<int>& ranks, int rank) {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() || *found != rank ? -1 : static_cast<int>(found - ranks.begin());
}

}  // namespace aiacc
