#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "csrc/core/execution/device_executor.h"
#include "csrc/core/execution/gpu/staged_lane.h"
#include "csrc/engines/cancellation.h"

namespace aiacc {

/// Stages units through pinned memory, for the engine for host memory of their communicator: see
/// StagedLane.
class StagedExecutor : public DeviceExecutor {
 public:
  explicit StagedExecutor(const DeviceOptions& options)
      : DeviceExecutor(options), driver_(options.driver), proposed_(options.proposed) {}
  ~StagedExecutor() override;

  bool queues() const override { return false; }
  void connect(Communicator& communicator) override {
    communicator.slots = std::make_unique<PinnedSlots>(*communicator.engine);
  }
  /// All communicators share the lanes.
  void abort(const Status& status) noexcept override { cancellation_.set(status); }
  void prepare(const Unit& unit, int lane) override;
  void run(Unit& unit, int lane, PackBuffer& buffer, const Finished& finished) override;

 private:
  std::shared_ptr<Device> open(int ordinal) override {
    return Device::open_or_propose(driver_(), ordinal, proposed_);
  }
  std::string refusal(const Request& request) const override;
  bool quiesce(Clock::time_point deadline) noexcept override;
  const Gpu& own_gpu(const Unit& unit);
  StagedLane& lane_on(const Gpu& gpu, int lane);

  const std::function<const CudaDriver&()> driver_;
  const int proposed_;
  Cancellation cancellation_;  ///< ends waits for copies to the host
  std::mutex lanes_mutex_;     ///< guards what follows
  std::map<std::pair<int, int>, std::unique_ptr<StagedLane>> lanes_;  ///< by lane and GPU
};

}  // namespace aiacc
