#include "csrc/core/negotiation/response_cache.h"

#include <algorithm>
#include <utility>

namespace aiacc {

std::optional<ResponseCache::Slot> ResponseCache::find(const Key& key) const {
  const auto found = by_name_.find(key);
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<ResponseCache::Slot> ResponseCache::insert(const Key& key,
                                                         const Request& request,
                                                         SharedPlacement devices,
                                                         std::vector<Slot>& evicted) {
  evicted.clear();
  if (capacity_ == 0) {
    return std::nullopt;
  }
  ++clock_;
  for (const List* list : {&on_trial_, &in_use_}) {
    if (is_stale(*list)) {
      evicted.push_back(list->first);
      erase(evicted.back());
    }
  }
  if (on_trial_.size >= capacity_) {
    return std::nullopt;
  }
  if (free_.empty()) {
    free_.insert(static_cast<Slot>(entries_.size()));
    entries_.emplace_back();
  }
  const Slot slot = *free_.begin();
  free_.erase(free_.begin());
  Entry& entry = entries_[slot];
  entry.key = key;
  entry.request = request;
  entry.devices = std::move(devices);
  entry.valid = true;
  append(slot);
  by_name_[key] = slot;
  return slot;
}

void ResponseCache::touch(Slot slot) {
  ++clock_;
  unlink(slot);
  Entry& entry = entries_[slot];
  entry.in_use = entry.in_use || in_use_.size < kMostInUse;
  append(slot);
}

void ResponseCache::erase(Slot slot) {
  by_name_.erase(entries_[slot].key);
  unlink(slot);
  entries_[slot] = {};
  free_.insert(slot);
}

/// As the most recently used one.
void ResponseCache::append(Slot slot) {
  Entry& entry = entries_[slot];
  List& list = list_of(entry);
  entry.used = clock_;
  entry.before = list.last;
  entry.after = kNone;
  (list.last == kNone ? list.first : entries_[list.last].after) = slot;
  list.last = slot;
  ++list.size;
}

void ResponseCache::unlink(Slot slot) {
  const Entry& entry = entries_[slot];
  List& list = list_of(entry);
  (entry.before == kNone ? list.first : entries_[entry.before].after) = entry.after;
  (entry.after == kNone ? list.last : entries_[entry.after].before) = entry.before;
  --list.size;
}

bool ResponseCache::is_stale(const List& list) const {
  const std::uint64_t slots = on_trial_.size + in_use_.size;
  return list.size > 0 &&
         clock_ - entries_[list.first].used > std::max(patience_, slots + slots / 2);
}

}  // namespace aiacc
