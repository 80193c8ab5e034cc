#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/core/message.h"
#include "csrc/planning/device_placement.h"

namespace aiacc {

/// What the ranks have agreed on before: name -> slot, so that a repeated submission is one bit.
///
/// A replicated table: every rank applies the same `insert`, `touch` and `erase` calls in the same
/// order, so slot numbers agree without a message. Least recently used entries give way. A name may
/// have a slot in every process set.
/// Threads: the driver's only.
class ResponseCache {
 public:
  using Slot = std::uint32_t;

  explicit ResponseCache(std::size_t capacity) : capacity_(capacity) {}

  /// The slot of this name in this process set, whatever its signature.
  std::optional<Slot> find(std::uint32_t process_set, const std::string& name) const;
  const Request& at(Slot slot) const { return entries_[slot].request; }
  /// The members' GPUs; null for a tensor in host memory.
  const SharedPlacement& devices(Slot slot) const { return entries_[slot].devices; }

  /// Lowest free slot, evicting when full; `evicted` receives what had to go. Nothing is cached
  /// when the capacity is 0.
  std::optional<Slot> insert(const Request& request,
                             SharedPlacement devices,
                             std::optional<Slot>& evicted);
  void touch(Slot slot) { entries_[slot].used = ++clock_; }
  void erase(Slot slot);

  /// Number of slots ever used at once: the length of the bit vector.
  std::size_t slots() const { return entries_.size(); }
  /// The slots in use for which `chosen(request)` holds, ascending.
  template <class Chosen>
  std::vector<Slot> select(Chosen chosen) const {
    std::vector<Slot> result;
    for (Slot slot = 0; slot < entries_.size(); ++slot) {
      if (entries_[slot].valid && chosen(entries_[slot].request)) {
        result.push_back(slot);
      }
    }
    return result;
  }

 private:
  struct Entry {
    Request request;
    SharedPlacement devices;
    std::uint64_t used = 0;
    bool valid = false;
  };
  Slot least_recently_used() const;

  std::size_t capacity_;
  std::uint64_t clock_ = 0;
  std::vector<Entry> entries_;
  std::set<Slot> free_;
  std::map<std::uint32_t, std::unordered_map<std::string, Slot>> by_name_;  ///< by process set
};

}  // namespace aiacc
