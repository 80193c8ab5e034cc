#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
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

  /// `first` serves the first placement, and outlives this; in it this is rank `rank` of `size`.
  DeviceEngineCache(DeviceEngine& first, int rank, int size, std::uint32_t process_set)
      : first_(first), rank_(rank), size_(size), process_set_(process_set) {}

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
  DeviceEngine& first_;
  const int rank_;
  const int size_;
  const std::uint32_t process_set_;
  std::vector<DevicePlacement> known_;
  std::mutex mutex_;  ///< guards what follows against threads that are not the launching one
  std::vector<std::unique_ptr<DeviceEngine>> others_;  ///< for the placements after the first
  std::optional<Status> aborted_;
};

}  // namespace aiacc
