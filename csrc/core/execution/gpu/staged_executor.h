#pragma once

#include <functional>
#include <optional>
#include <string>

#include "csrc/core/execution/device_executor.h"
#include "csrc/core/execution/gpu/staging.h"
#include "csrc/core/execution/gpu/units_on_gpu.h"
#include "csrc/core/execution/gpu/used_gpus.h"
#include "csrc/engines/cancellation.h"

namespace aiacc {

/// Stages units through pinned memory, for the engine for host memory of their communicator: see
/// Staging.
class StagedExecutor : public DeviceExecutor {
 public:
  /// `driver` is asked for with the first tensor; what it gives, and `units`, outlive this.
  /// `proposed`: the GPU of a rank that never had a tensor to tell one. `lanes`: those of the plan,
  /// the express lane included.
  StagedExecutor(std::function<const CudaDriver&()> driver,
                 int proposed,
                 int lanes,
                 UnitsOnGpu& units);

  bool queues() const override { return false; }
  std::uint32_t launch_lane(std::uint32_t lane) const override { return lane; }
  Device& device(int ordinal) override { return *gpus_.at(ordinal).device; }
  std::string refusal(const Request& request) const override;
  void connect(Communicator& communicator) override {
    communicator.slots = std::make_unique<PinnedSlots>(*communicator.engine);
  }
  void check(const Communicator&) override {}
  /// Of all communicators alike: they share the lanes.
  void abort(const Communicator&, const Status& status) noexcept override {
    cancellation_.set(status);
  }
  void prepare(const Unit& unit, int lane) override;
  void run(Unit& unit, int lane, PackBuffer& buffer, const Finished& finished) override;
  std::optional<UnitWait> first_queued() override { return std::nullopt; }
  std::optional<UnitWait> issuing() override { return std::nullopt; }
  bool quiesce(Clock::time_point deadline) noexcept override;

 private:
  UsedGpus<Staging>::Gpu& own_gpu(const Unit& unit);

  UnitsOnGpu& units_;
  Cancellation cancellation_;  ///< ends waits for copies to the host
  UsedGpus<Staging> gpus_;
};

}  // namespace aiacc
