#include "csrc/core/execution/communicator_table.h"

#include <utility>

#include "csrc/engines/members.h"

namespace aiacc {
namespace {

std::shared_ptr<Team> team_of(std::uint32_t id, std::vector<int> ranks, int rank) {
  auto team = std::make_shared<Team>();
  team->id = id;
  team->rank = index_in(ranks, rank);
  team->ranks = std::move(ranks);
  return team;
}

std::shared_ptr<const Team> team_of_all(int rank,
                                        int size,
                                        Engine& engine,
                                        DeviceExecutor& executor) {
  auto team = team_of(0, all_ranks(size), rank);
  team->engine = &engine;
  executor.connect(*team);
  return team;
}

}  // namespace

Teams::Teams(int rank, int size, Engine& engine, DeviceExecutor& executor)
    : rank_(rank),
      engine_(engine),
      executor_(executor),
      everyone_(team_of_all(rank, size, engine, executor)) {
  teams_.emplace(0, everyone_);
}

std::shared_ptr<const Team> Teams::find(std::uint32_t id) const {
  if (id == 0) {
    return everyone_;
  }
  const std::lock_guard lock(mutex_);
  const auto found = teams_.find(id);
  return found == teams_.end() ? nullptr : found->second;
}

std::vector<std::uint32_t> Teams::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> ids;
  ids.reserve(teams_.size());
  for (const auto& [id, team] : teams_) {
    ids.push_back(id);
  }
  return ids;
}

bool Teams::add(std::uint32_t id, const std::vector<int>& ranks) {
  auto team = team_of(id, ranks, rank_);
  const bool member = team->rank >= 0;
  const std::lock_guard lock(mutex_);
  teams_[id] = std::move(team);
  return member;
}

void Teams::connect(std::uint32_t id) {
  const std::shared_ptr<const Team> blank = find(id);
  AIACC_CHECK(blank != nullptr);
  auto team = team_of(id, blank->ranks, rank_);
  team->owned = engine_.split(team->ranks, id);
  team->engine = team->owned.get();
  executor_.connect(*team);
  const std::lock_guard lock(mutex_);
  if (aborted_) {
    abort(*team, *aborted_);
  }
  teams_[id] = std::move(team);
}

std::shared_ptr<const Team> Teams::remove(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = teams_.find(id);
  AIACC_CHECK(id != 0 && found != teams_.end());
  std::shared_ptr<const Team> team = std::move(found->second);
  teams_.erase(found);
  return team;
}

void Teams::check_gpu() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, team] : teams_) {
    if (team->engine != nullptr) {
      executor_.check(*team);
    }
  }
}

/// A team that is not connected has nothing to end. With the lock.
void Teams::abort(const Team& team, const Status& status) noexcept {
  if (team.engine != nullptr) {
    team.engine->abort(status);
    executor_.abort(team, status);
  }
}

void Teams::abort(const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = aborted_ ? aborted_ : status;
  for (const auto& [id, team] : teams_) {
    abort(*team, status);
  }
}

}  // namespace aiacc
