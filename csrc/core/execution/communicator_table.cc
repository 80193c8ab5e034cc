#include "csrc/core/execution/communicator_table.h"

#include <utility>

#include "csrc/engines/members.h"

namespace aiacc {
namespace {

std::shared_ptr<Communicator> communicator_of(std::uint32_t id, std::vector<int> ranks, int rank) {
  auto communicator = std::make_shared<Communicator>();
  communicator->id = id;
  communicator->rank = index_in(ranks, rank);
  communicator->ranks = std::move(ranks);
  return communicator;
}

std::shared_ptr<const Communicator> communicator_of_all(int rank,
                                                        int size,
                                                        Engine& engine,
                                                        DeviceExecutor& executor) {
  auto communicator = communicator_of(0, all_ranks(size), rank);
  communicator->engine = &engine;
  executor.connect(*communicator);
  return communicator;
}

}  // namespace

CommunicatorTable::CommunicatorTable(int rank, int size, Engine& engine, DeviceExecutor& executor)
    : rank_(rank),
      engine_(engine),
      executor_(executor),
      everyone_(communicator_of_all(rank, size, engine, executor)) {
  communicators_.emplace(0, everyone_);
}

std::shared_ptr<const Communicator> CommunicatorTable::find(std::uint32_t id) const {
  if (id == 0) {
    return everyone_;
  }
  const std::lock_guard lock(mutex_);
  const auto found = communicators_.find(id);
  return found == communicators_.end() ? nullptr : found->second;
}

std::vector<std::uint32_t> CommunicatorTable::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> ids;
  ids.reserve(communicators_.size());
  for (const auto& [id, communicator] : communicators_) {
    ids.push_back(id);
  }
  return ids;
}

bool CommunicatorTable::add(std::uint32_t id, const std::vector<int>& ranks) {
  auto communicator = communicator_of(id, ranks, rank_);
  const bool member = communicator->rank >= 0;
  const std::lock_guard lock(mutex_);
  communicators_[id] = std::move(communicator);
  return member;
}

void CommunicatorTable::connect(std::uint32_t id) {
  const std::shared_ptr<const Communicator> blank = find(id);
  AIACC_CHECK(blank != nullptr);
  auto communicator = communicator_of(id, blank->ranks, rank_);
  communicator->owned = engine_.split(communicator->ranks, id);
  communicator->engine = communicator->owned.get();
  executor_.connect(*communicator);
  const std::lock_guard lock(mutex_);
  if (aborted_) {
    abort(*communicator, *aborted_);
  }
  communicators_[id] = std::move(communicator);
}

std::shared_ptr<const Communicator> CommunicatorTable::remove(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = communicators_.find(id);
  AIACC_CHECK(id != 0 && found != communicators_.end());
  std::shared_ptr<const Communicator> communicator = std::move(found->second);
  communicators_.erase(found);
  return communicator;
}

void CommunicatorTable::check_gpu() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, communicator] : communicators_) {
    if (communicator->engine != nullptr) {
      executor_.check(*communicator);
    }
  }
}

/// A communicator that is not connected has nothing to end. With the lock.
void CommunicatorTable::abort(const Communicator& communicator, const Status& status) noexcept {
  if (communicator.engine != nullptr) {
    communicator.engine->abort(status);
    executor_.abort(communicator, status);
  }
}

void CommunicatorTable::abort(const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = aborted_ ? aborted_ : status;
  for (const auto& [id, communicator] : communicators_) {
    abort(*communicator, status);
  }
}

}  // namespace aiacc
