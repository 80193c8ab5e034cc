#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/core/negotiation/digest.h"
#include "csrc/core/negotiation/request.h"
#include "csrc/planning/device_placement.h"

namespace aiacc {

/// Cache of negotiated requests: digest of a name -> slot, so that a repeated submission is one
/// bit.
///
/// A replicated table: every rank applies the same calls in the same order, so slot numbers agree
/// without a message. A name may have a slot in every process set.
/// A name that has come once is *on trial*, and `capacity` names at most. One that comes again
/// while it has its slot is *in use* and keeps it, however many there are: a training step may go
/// through more names than `capacity`, and none of them may be lost before it comes again. For the
/// same reason a new name has to wait while all on trial may still come again, which is for
/// `patience` uses of names, or one and a half times as many as there are slots. What has not come
/// for so long gives way, whether in use or on trial.
/// Threads: the loop thread's only. Calls take constant time; `touch` takes no memory.
class ResponseCache {
 public:
  using Slot = std::uint32_t;
  /// Process set and digest of the name.
  using Key = std::pair<std::uint32_t, Digest>;

  static constexpr std::uint64_t kPatience = std::uint64_t{1} << 18;
  /// At most so many names are in use; further ones stay on trial.
  static constexpr std::size_t kMostInUse = std::size_t{1} << 20;

  explicit ResponseCache(std::size_t capacity, std::uint64_t patience = kPatience)
      : capacity_(capacity), patience_(patience) {}

  /// The slot of this name in this process set, whatever its signature.
  std::optional<Slot> find(const Key& key) const;
  bool has(Slot slot) const { return slot < entries_.size() && entries_[slot].valid; }
  /// On a rank outside its process set all but that is blank.
  const Request& at(Slot slot) const { return entries_[slot].request; }
  /// The members' GPUs; null for a tensor in host memory.
  const SharedPlacement& devices(Slot slot) const { return entries_[slot].devices; }

  /// Lowest free slot, or none for this time. `evicted` receives the slots that had to go, one of
  /// which may be the new one.
  std::optional<Slot> insert(const Key& key,
                             const Request& request,
                             SharedPlacement devices,
                             std::vector<Slot>& evicted);
  /// The name has come again.
  void touch(Slot slot);
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
  static constexpr Slot kNone = ~Slot{0};
  struct Entry {
    Key key;
    Request request;
    SharedPlacement devices;
    std::uint64_t used = 0;
    Slot before = kNone;  ///< in its list, in the order of use
    Slot after = kNone;
    bool valid = false;
    bool in_use = false;
  };
  /// The least recently used one first.
  struct List {
    Slot first = kNone;
    Slot last = kNone;
    std::size_t size = 0;
  };
  List& list_of(const Entry& entry) { return entry.in_use ? in_use_ : on_trial_; }
  void append(Slot slot);
  void unlink(Slot slot);
  bool is_stale(const List& list) const;

  const std::size_t capacity_;
  const std::uint64_t patience_;
  std::uint64_t clock_ = 0;  ///< uses so far
  List on_trial_;
  List in_use_;
  std::vector<Entry> entries_;
  std::set<Slot> free_;
  struct Hash {
    std::size_t operator()(const Key& key) const { return key.second.low ^ key.first; }
  };
  std::unordered_map<Key, Slot, Hash> by_name_;
};

}  // namespace aiacc
