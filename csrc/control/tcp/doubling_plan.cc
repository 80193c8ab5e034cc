#include "csrc/control/tcp/doubling_plan.h"

#include <algorithm>
#include <map>
#include <utility>

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
  for (const int mate : hosts[own]) {
    plan.mates.push_back({mate, RankBlock({mate})});
  }
  if (hosts[own].front() != rank) {
    plan.proxy = hosts[own].front();
    return plan;
  }
  plan.folds.assign(plan.mates.begin() + 1, plan.mates.end());
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
    plan.stages.push_back({hosts[partner].front(), RankBlock(std::move(block))});
  }
  if (own + power < count) {
    plan.folds.push_back({hosts[own + power].front(), RankBlock(hosts[own + power])});
  }
  return plan;
}

std::vector<int> DoublingPlan::partners() const {
  std::vector<int> all;
  for (const auto* partners : {&stages, &folds}) {
    for (const Partner& partner : *partners) {
      all.push_back(partner.rank);
    }
  }
  if (proxy >= 0) {
    all.push_back(proxy);
  }
  return all;
}

}  // namespace aiacc
