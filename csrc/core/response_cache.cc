#include "csrc/core/response_cache.h"

#include <utility>

namespace aiacc {

std::optional<ResponseCache::Slot> ResponseCache::find(std::uint32_t process_set,
                                                       const std::string& name) const {
  const auto names = by_name_.find(process_set);
  if (names == by_name_.end()) {
    return std::nullopt;
  }
  const auto found = names->second.find(name);
  if (found == names->second.end()) {
    return std::nullopt;
  }
  return found->second;
}

std::optional<ResponseCache::Slot> ResponseCache::insert(const Request& request,
                                                         SharedPlacement devices,
                                                         std::optional<Slot>& evicted) {
  evicted.reset();
  if (capacity_ == 0) {
    return std::nullopt;
  }
  if (free_.empty() && entries_.size() == capacity_) {
    evicted = least_recently_used();
    erase(*evicted);
  }
  if (free_.empty()) {
    free_.insert(static_cast<Slot>(entries_.size()));
    entries_.emplace_back();
  }
  const Slot slot = *free_.begin();
  free_.erase(free_.begin());
  entries_[slot] = {request, std::move(devices), ++clock_, true};
  by_name_[request.process_set][request.name] = slot;
  return slot;
}

void ResponseCache::erase(Slot slot) {
  const Request& request = entries_[slot].request;
  const auto names = by_name_.find(request.process_set);
  names->second.erase(request.name);
  if (names->second.empty() && names->first != 0) {
    by_name_.erase(names);
  }
  entries_[slot] = {};
  free_.insert(slot);
}

ResponseCache::Slot ResponseCache::least_recently_used() const {
  Slot oldest = 0;
  for (Slot slot = 1; slot < entries_.size(); ++slot) {
    if (entries_[slot].used < entries_[oldest].used) {
      oldest = slot;
    }
  }
  return oldest;
}

}  // namespace aiacc
