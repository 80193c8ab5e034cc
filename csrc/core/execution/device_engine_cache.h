#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/engines/device_engine.h"
#include "csrc/planning/device_placement.h"

namespace aiacc {

/// The engines of one process set for tensors on GPUs: one for each combination of its members'
/// GPUs that an operation has been on. A job with one GPU for each rank has one.
class DeviceEngineCache {
 public:
  /// Numbers of `split` that a process set may use: it starts at kSplitIds times its own.
  static constexpr std::uint32_t kSplitIds = 32;

  /// For the members of a process set, of whom this is number `rank`. `all`, the engine of all
  /// ranks, outlives this; if those are not the members, one is split from it. The first placement
  /// has that. Throws what DeviceEngine::split throws.
  DeviceEngineCache(DeviceEngine& all,
                    const std::vector<int>& members,
                    int rank,
                    std::uint32_t process_set);

  /// The engine for a placement. A new one is collective over the members, and may block until they
  /// are connected. Throws Error(kEngine) for more than kSplitIds of them, and what
  /// DeviceEngine::split throws. The launching thread's: all members ask for the same placements in
  /// the same order.
  DeviceEngine& on(const DevicePlacement& placement);

  /// Throws what DeviceEngine::check does. Any thread.
  void check();
  /// Aborts all of them, also those that come later. Any thread.
  void abort(const Status& status) noexcept;

 private:
  const int rank_;
  const int size_;
  const std::uint32_t process_set_;
  std::vector<DevicePlacement> known_;
  const std::unique_ptr<DeviceEngine> split_;  ///< null for all ranks; ends after `others_`
  std::mutex mutex_;  ///< guards what follows against threads that are not the launching one
  std::vector<DeviceEngine*> engines_;                 ///< by placement
  std::vector<std::unique_ptr<DeviceEngine>> others_;  ///< for the placements after the first
  Status aborted_;
};

}  // namespace aiacc
