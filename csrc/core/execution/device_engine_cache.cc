#include "csrc/core/execution/device_engine_cache.h"

#include <string>
#include <utility>

#include "csrc/engines/members.h"

namespace aiacc {

DeviceEngineCache::DeviceEngineCache(DeviceEngine& all,
                                     const std::vector<int>& members,
                                     int rank,
                                     std::uint32_t process_set)
    : rank_(rank),
      size_(static_cast<int>(members.size())),
      process_set_(process_set),
      split_(process_set == 0 ? nullptr : all.split(members, process_set * kSplitIds)),
      engines_{split_ == nullptr ? &all : split_.get()} {}

DeviceEngine& DeviceEngineCache::on(const DevicePlacement& placement) {
  const std::size_t index = find_placement(known_, placement);
  if (index == known_.size()) {
    if (index == kSplitIds) {
      throw Error(Code::kEngine,
                  "[gpu] process set " + std::to_string(process_set_) + " uses more than " +
                      std::to_string(kSplitIds) +
                      " combinations of its ranks' GPUs (expected a few); keep every tensor on the "
                      "same GPU of a rank");
    }
    if (index > 0) {
      const std::uint32_t split_id = process_set_ * kSplitIds + static_cast<std::uint32_t>(index);
      std::unique_ptr<DeviceEngine> engine = engines_.front()->split(all_ranks(size_), split_id);
      const std::lock_guard lock(mutex_);
      if (!aborted_.ok()) {
        engine->abort(aborted_);
      }
      engines_.push_back(engine.get());
      others_.push_back(std::move(engine));
    }
    known_.push_back(placement);
  }
  engines_[index]->device(known_[index][static_cast<std::size_t>(rank_)]);
  return *engines_[index];
}

void DeviceEngineCache::check() {
  const std::lock_guard lock(mutex_);
  for (DeviceEngine* engine : engines_) {
    engine->check();
  }
}

void DeviceEngineCache::abort(const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = aborted_.ok() ? status : aborted_;
  for (DeviceEngine* engine : engines_) {
    engine->abort(status);
  }
}

}  // namespace aiacc
