#include "csrc/control/tcp/doubling_plan.h"

#include <algorithm>
#include <map>

namespace aiacc {

std::vector<std::vector<int>> ranks_by_host(const std::vector<int>& host_of, int size) {
  std::vector<std::vector<int>> hosts;
  std::map<int, std::size_t> numbers;
  for (int rank = 0; rank < size; ++rank) {
    const int host = host_of.empty() ? rank : host_of[static_cast<std::size_t>(rank)];
    const auto [number, is_new] = numbers.try_emplace(host, hosts.size());
    if (is_new) {
      hosts.emplace_back();
    }
    hosts[number->second].push_back(rank);
  }
  return hosts;
}

DoublingPlan DoublingPlan::of(int rank, const std::vector<std::vector<int>>& hosts) {
  const auto count = hosts.size();
  const auto own = static_cast<std::size_t>(
      std::find_if(
          hosts.begin(),
          hosts.end(),
          [&](const auto& ranks) { return std::binary_search(ranks.begin(), ranks.end(), rank); }) -
      hosts.begin());
  DoublingPlan plan;
  const std::vector<int>& mates = hosts[own];
  if (mates.front() != rank) {
    plan.proxy = mates.front();
    return plan;
  }
  plan.members.assign(mates.begin() + 1, mates.end());
  std::size_t power = 1;
  while (power * 2 <= count) {
    power *= 2;
  }
  if (own >= power) {
    plan.proxy = hosts[own - power].front();
    return plan;
  }
  for (std::size_t bit = 1; bit < power; bit *= 2) {
    const std::size_t partner = own ^ bit;
    const std::size_t first = partner & ~(bit - 1);
    std::vector<int> block;
    for (std::size_t host = first; host < first + bit; ++host) {
      block.insert(block.end(), hosts[host].begin(), hosts[host].end());
      if (host + power < count) {
        block.insert(block.end(), hosts[host + power].begin(), hosts[host + power].end());
      }
    }
    plan.stages.push_back(hosts[partner].front());
    plan.blocks.emplace_back(std::move(block));
  }
  if (own + power < count) {
    plan.extra = hosts[own + power].front();
    plan.extra_block = RankBlock(hosts[own + power]);
  }
  return plan;
}

std::vector<int> DoublingPlan::partners() const {
  std::vector<int> all = stages;
  all.insert(all.end(), members.begin(), members.end());
  for (const int other : {extra, proxy}) {
    if (other >= 0) {
      all.push_back(other);
    }
  }
  return all;
}

}  // namespace aiacc
