#include "csrc/core/execution/device_engine_cache.h"

#include <string>
#include <utility>

#include "csrc/engines/members.h"

namespace aiacc {

DeviceEngine& PlacedEngines::on(const DevicePlacement& placement) {
  const std::size_t place = find_placement(known_, placement);
  if (place == known_.size()) {
    if (place == kGroups) {
      throw Error(Code::kEngine,
                  "[gpu] process set " + std::to_string(process_set_) + " uses more than " +
                      std::to_string(kGroups) +
                      " combinations of its ranks' GPUs (expected a few); keep every tensor on the "
                      "same GPU of a rank");
    }
    if (place > 0) {
      const std::uint32_t group = process_set_ * kGroups + static_cast<std::uint32_t>(place);
      std::unique_ptr<DeviceEngine> engine = first_.split(all_ranks(size_), group);
      const std::lock_guard lock(mutex_);
      if (aborted_) {
        engine->abort(*aborted_);
      }
      others_.push_back(std::move(engine));
    }
    known_.push_back(placement);
  }
  DeviceEngine& engine = place == 0 ? first_ : *others_[place - 1];
  engine.device(known_[place][static_cast<std::size_t>(rank_)]);
  return engine;
}

void PlacedEngines::check() {
  first_.check();
  const std::lock_guard lock(mutex_);
  for (const auto& engine : others_) {
    engine->check();
  }
}

void PlacedEngines::abort(const Status& status) noexcept {
  first_.abort(status);
  const std::lock_guard lock(mutex_);
  aborted_ = aborted_ ? aborted_ : status;
  for (const auto& engine : others_) {
    engine->abort(status);
  }
}

}  // namespace aiacc
