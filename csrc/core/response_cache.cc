#include "csrc/core/response_cache.h"

namespace aiacc {

std::optional<ResponseCache::Slot> ResponseCache::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    return std::nullopt;
  }
  return found->second;
}

std::optional<ResponseCache::Slot> ResponseCache::insert(const Request& request,
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
  entries_[slot] = {request, ++clock_, true};
  by_name_[request.name] = slot;
  return slot;
}

void ResponseCache::erase(Slot slot) {
  by_name_.erase(entries_[slot].request.name);
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
