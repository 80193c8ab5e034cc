#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/wait_mark.h"
#include "csrc/core/execution/device_engine_cache.h"
#include "csrc/core/negotiation/process_set_table.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/staged/pinned_slots.h"

namespace aiacc {

/// The ranks of one process set as this rank sees them, and what moves their bytes. Immutable: a
/// unit keeps the communicator that it was planned for alive.
struct Communicator {
  std::uint32_t id = 0;
  std::vector<int> ranks;              ///< global ranks, ascending
  int rank = 0;                        ///< index of this rank among them; -1: it is no member
  Engine* engine = nullptr;            ///< null unless this rank is a member and the set is usable
  std::unique_ptr<Engine> owned;       ///< behind `engine`, except that of all ranks
  std::unique_ptr<PinnedSlots> slots;  ///< of `engine`, for staged units; ends before it
  std::unique_ptr<DeviceEngineCache> gpu;  ///< where units on GPUs are queued; null if staged

  int size() const { return static_cast<int>(ranks.size()); }
  /// How many places behind this rank the one is that it waits for; 0 if that is not known.
  std::uint32_t distance_to(const LaneWait& wait) const {
    const int awaited = index_in(ranks, wait.for_rank);
    return awaited < 0 ? 0 : static_cast<std::uint32_t>((awaited - rank + size()) % size());
  }
  /// Ends its operations, also those that come later.
  void abort(const Status& status) const noexcept {
    if (engine != nullptr) {
      engine->abort(status);
    }
    if (gpu != nullptr) {
      gpu->abort(status);
    }
  }
};

}  // namespace aiacc
