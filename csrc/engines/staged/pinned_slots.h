#pragma once

#include <memory>
#include <mutex>

#include "csrc/cuda/device.h"
#include "csrc/engines/engine.h"

namespace aiacc {

/// The slots of an engine (Engine::slots), page-locked for all GPUs from the first use on.
///
/// Threads: any. Its end, which comes before the engine's, gives them back; no copy may be running
/// then.
class PinnedSlots {
 public:
  explicit PinnedSlots(const Engine& engine) : engine_(engine) {}
  ~PinnedSlots();
  PinnedSlots(const PinnedSlots&) = delete;
  PinnedSlots& operator=(const PinnedSlots&) = delete;

  /// Whether GPUs can copy to and from the slots of a lane. The first call asks the driver, which
  /// may wait for the GPU; if it refuses, the answer is no for good, and the log has the reason.
  /// Needs a Device::Scope.
  bool usable(const std::shared_ptr<Device>& device, int lane);

 private:
  const Engine& engine_;
  std::mutex mutex_;  ///< guards what follows
  bool asked_ = false;
  SharedSlots pinned_;
  std::shared_ptr<Device> device_;  ///< null unless they are pinned
};

}  // namespace aiacc
