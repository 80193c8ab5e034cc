#include "csrc/core/execution/device_engine_cache.h"

#include <string>
#include <utility>

#include "csrc/engines/members.h"

namespace aiacc {

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
      std::unique_ptr<DeviceEngine> engine = first_.split(all_ranks(size_), split_id);
      const std::lock_guard lock(mutex_);
      if (aborted_) {
        engine->abort(*aborted_);
      }
      others_.push_back(std::move(engine));
    }
    known_.push_back(placement);
  }
  DeviceEngine& engine = index == 0 ? first_ : *others_[index - 1];
  engine.device(known_[index][static_cast<std::size_t>(rank_)]);
  return engine;
}

void DeviceEngineCache::check() {
  first_.check();
  const std::lock_guard lock(mutex_);
  for (const auto& engine : others_) {
    engine->check();
  }
}

void DeviceEngineCache::abort(const Status& status) noexcept {
  first_.abort(status);
  const std::lock_guard lock(mutex_);
  aborted_ = aborted_ ? aborted_ : status;
  for (const auto& engine : others_) {
    engine->abort(status);
  }
}

}  // namespace aiacc
