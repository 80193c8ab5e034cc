#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/core/execution/device_executor.h"
#include "csrc/core/execution/gpu/staged_lane.h"
#include "csrc/core/execution/gpu/used_gpus.h"
#include "csrc/engines/cancellation.h"

namespace aiacc {

/// Stages units through pinned memory, for the engine for host memory of their communicator: see
/// StagedLane.
class StagedExecutor : public DeviceExecutor {
 public:
  explicit StagedExecutor(const DeviceOptions& options);

  bool queues() const override { return false; }
  void connect(Communicator& communicator) override {
    communicator.slots = std::make_unique<PinnedSlots>(*communicator.engine);
  }
  /// All communicators share the lanes.
  void abort(const Status& status) noexcept override { cancellation_.set(status); }
  void prepare(const Unit& unit, int lane) override;
  void run(Unit& unit, int lane, PackBuffer& buffer, const Finished& finished) override;

 private:
  using Lanes = std::vector<std::unique_ptr<StagedLane>>;
  using Gpus = UsedGpus<Lanes>;

  Device& device(int ordinal) override { return *gpus_.at(ordinal).device; }
  std::string refusal(const Request& request) const override;
  bool quiesce(Clock::time_point deadline) noexcept override;
  Gpus::Gpu& own_gpu(const Unit& unit);

  Cancellation cancellation_;  ///< ends waits for copies to the host
  Gpus gpus_;
};

}  // namespace aiacc
