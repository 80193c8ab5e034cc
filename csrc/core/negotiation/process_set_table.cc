#include "csrc/core/negotiation/process_set_table.h"

#include <algorithm>
#include <utility>

#include "csrc/engines/members.h"

namespace aiacc {

ProcessSetTable::ProcessSetTable(int size) { sets_[0].ranks = all_ranks(size); }

std::uint32_t ProcessSetTable::add(std::vector<int> ranks) {
  sets_[next_] = {std::move(ranks), false};
  return next_++;
}

std::uint32_t ProcessSetTable::form(std::vector<int> ranks) {
  sets_[next_] = {std::move(ranks), true};
  return next_++;
}

bool ProcessSetTable::remove(std::uint32_t id) { return id != 0 && sets_.erase(id) == 1; }

const std::vector<int>* ProcessSetTable::members(std::uint32_t id) const {
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : &found->second.ranks;
}

int ProcessSetTable::index_of(std::uint32_t id, int rank) const {
  const std::vector<int>* ranks = members(id);
  return ranks == nullptr ? -1 : index_in(*ranks, rank);
}

std::optional<std::uint32_t> ProcessSetTable::find(const std::vector<int>& ranks) const {
  for (const auto& [id, set] : sets_) {
    if (!set.formed && set.ranks == ranks) {
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
