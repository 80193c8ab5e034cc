#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "csrc/core/execution/device_executor.h"
#include "csrc/core/execution/finite_check.h"
#include "csrc/core/execution/gpu/report_pool.h"
#include "csrc/core/execution/unit.h"
#include "csrc/cuda/device.h"
#include "csrc/engines/device_engine.h"

namespace aiacc {

/// Units whose results are queued on a GPU and, as far as is known, are not there yet.
///
/// Threads: any. The driver takes the lock, so nobody waits with it.
class UnitsOnGpu {
 public:
  /// What the GPU has not done for so long is reported, or fails; 0: never. `finite`, what looks at
  /// inputs, or null, outlives this.
  UnitsOnGpu(double stall_warn_s, double stall_fail_s, FiniteCheck* finite)
      : stall_warn_s_(stall_warn_s), stall_fail_s_(stall_fail_s), finite_(finite) {}
  UnitsOnGpu(const UnitsOnGpu&) = delete;
  UnitsOnGpu& operator=(const UnitsOnGpu&) = delete;

  /// What moves a unit, alive as long as its communicator; null: nobody waits for others.
  struct Mover {
    const DeviceEngine* engine = nullptr;
    int lane = 0;  ///< of that engine
  };

  /// The unit is on its way until the GPU has come to the mark. Its operations have the mark from
  /// now on.
  void add(const Unit& unit,
           const Mover& mover,
           const std::shared_ptr<Device>& device,
           const Mark& done,
           ReportPool::Taken checked);

  /// What is queued on `stream` from now on comes after the operation, which is done. Needs a
  /// Device::Scope.
  void order_after(const Operation& operation, CudaStream stream, const Device& device);

  /// The first one, if there are some.
  std::optional<UnitWait> first();
  /// Whether there are some, or what was found in their inputs is to be thrown.
  bool busy();
  /// Throws Error(kEngine) if the GPU has failed, Error(kNotFinite) if it has found such an input
  /// and that shall be an error, Error(kTimeout) if a unit takes longer than `stall_fail_s`. Does
  /// not wait.
  void look_after();
  /// Collects the findings of units that have ended since the last look.
  void collect_rest() noexcept;

 private:
  struct Queued {
    std::shared_ptr<Device> device;
    Mark done;
    UnitId id;
    std::string name;
    Mover mover;
    std::weak_ptr<const Communicator> communicator;
    Clock::time_point since;
    ReportPool::Taken checked;
    bool reported = false;
  };

  void retire();

  const double stall_warn_s_;
  const double stall_fail_s_;
  FiniteCheck* const finite_;
  std::mutex mutex_;  ///< guards what follows, and Operation::completed
  std::deque<Queued> queued_;
};

}  // namespace aiacc
