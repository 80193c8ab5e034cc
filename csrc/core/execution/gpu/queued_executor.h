#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "csrc/core/execution/device_executor.h"
#include "csrc/core/execution/gpu/device_unit.h"
#include "csrc/engines/device_engine.h"

namespace aiacc {

/// Queues units on the streams of an engine for GPUs, those that are joined as one launch group:
/// each is packed as it comes, all are issued by one call, then each is unpacked.
class QueuedExecutor : public DeviceExecutor {
 public:
  /// `engine`, that of all ranks, outlives this.
  QueuedExecutor(DeviceEngine& engine, const DeviceOptions& options);
  ~QueuedExecutor() override;

  bool queues() const override { return true; }
  std::uint32_t launch_lane(std::uint32_t lane) const override {
    return static_cast<std::uint32_t>(engine_lane(static_cast<int>(lane)) % engine_.lanes());
  }
  void connect(Communicator& communicator) override;
  void run(Unit& unit, int lane, PackBuffer& buffer, const Finished& finished) override;
  std::optional<UnitWait> issuing() override;

 private:
  /// A unit of the group that is not issued yet.
  struct Started {
    Unit unit;
    Clock::time_point since;
    DeviceEngine* engine = nullptr;
    int lane = 0;  ///< of that engine
    DeviceResources* resources = nullptr;
    std::optional<DeviceUnit> work;
  };

  std::shared_ptr<Device> open(int ordinal) override { return engine_.open(ordinal); }
  std::string refusal(const Request& request) const override;
  bool quiesce(Clock::time_point deadline) noexcept override { return engine_.quiesce(deadline); }

  /// Lanes of the plan are those of the engine for host memory; an engine for GPUs may have fewer.
  int engine_lane(int lane) const {
    return lane + 1 == lanes_ ? engine_.express_lane() : lane % engine_.lanes();
  }
  DeviceResources& resources_on(int ordinal);
  void start(Unit& unit, int lane);
  void launch();
  void show_issuing(const Started* started);

  DeviceEngine& engine_;
  const int lanes_;
  const bool checks_;  ///< units look at their inputs
  // The launching thread's.
  std::map<int, std::unique_ptr<DeviceResources>> resources_;  ///< by GPU
  std::vector<std::unique_ptr<Started>> group_;  ///< the launch group, then spare ones
  std::size_t grouped_ = 0;

  std::mutex issuing_mutex_;  ///< guards what follows
  const Started* issuing_ = nullptr;
};

/// Where it is decided how units are moved: `engine`, that of all ranks, outlives what is made;
/// null: they are staged.
std::unique_ptr<DeviceExecutor> make_device_executor(DeviceEngine* engine,
                                                     const DeviceOptions& options);

}  // namespace aiacc
