#include "csrc/core/execution/communicator_table.h"

#include <utility>

#include "csrc/engines/members.h"

namespace aiacc {

CommunicatorTable::CommunicatorTable(int rank, int size, Engine& engine, DeviceExecutor& executor)
    : rank_(rank), engine_(engine), executor_(executor) {
  auto everyone = communicator_of(0, all_ranks(size));
  everyone->engine = &engine;
  executor.connect(*everyone);
  everyone_ = std::move(everyone);
  communicators_.emplace(0, everyone_);
}

std::shared_ptr<Communicator> CommunicatorTable::communicator_of(std::uint32_t id,
                                                                 std::vector<int> ranks) const {
  auto communicator = std::make_shared<Communicator>();
  communicator->id = id;
  communicator->rank = index_in(ranks, rank_);
  communicator->ranks = std::move(ranks);
  return communicator;
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
  auto communicator = communicator_of(id, ranks);
  const bool member = communicator->rank >= 0;
  const std::lock_guard lock(mutex_);
  communicators_[id] = std::move(communicator);
  return member;
}

void CommunicatorTable::connect(std::uint32_t id) {
  const std::shared_ptr<const Communicator> blank = find(id);
  AIACC_CHECK(blank != nullptr);
  auto communicator = communicator_of(id, blank->ranks);
  communicator->owned = engine_.split(communicator->ranks, id);
  communicator->engine = communicator->owned.get();
  executor_.connect(*communicator);
  const std::lock_guard lock(mutex_);
  if (!aborted_.ok()) {
    communicator->abort(aborted_);
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
    if (communicator->gpu != nullptr) {
      communicator->gpu->check();
    }
  }
}

void CommunicatorTable::abort(const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = aborted_.ok() ? status : aborted_;
  executor_.abort(status);
  for (const auto& [id, communicator] : communicators_) {
    communicator->abort(status);
  }
}

}  // namespace aiacc
