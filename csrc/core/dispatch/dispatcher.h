#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "csrc/base/timeline.h"
#include "csrc/core/dispatch/lane.h"
#include "csrc/core/dispatch/lane_throughput.h"
#include "csrc/core/dispatch/planner_input.h"
#include "csrc/core/execution/communicator_table.h"
#include "csrc/core/execution/gpu/device_path.h"
#include "csrc/core/negotiation/negotiator.h"
#include "csrc/core/submission/tensor_table.h"
#include "csrc/planning/launch_groups.h"

namespace aiacc {

/// From agreement to result: plans units and has the lanes move them.
///
/// Threads: the driver's, except where it says so.
///
/// Order: units of all process sets run on the same lanes, in the order of their agreement, which is
/// the same on all ranks. The lane of a unit follows from what its set alone has agreed on and from
/// the rounds, in which all ranks take part: so all members put it into the same lane, whatever else
/// each of them runs there. Of the units that are not done take the first in the order of agreement:
/// on none of its members another one is before it in its lane, so all of them come to run it, and it
/// ends. Hence no ranks wait for each other crosswise.
///
/// Units of tensors on GPUs, if they have an engine: all of them are issued by one launching thread in
/// the order of their agreement. They are finished here when they are queued.
class Dispatcher {
 public:
  /// `gpu`: the engine for tensors on GPUs, or null. `on_failure` is called by the thread that failed
  /// a unit, after `failure` has it.
  Dispatcher(int rank,
             int size,
             Engine& engine,
             DeviceEngine* gpu,
             DevicePathOptions gpu_options,
             Timeline& timeline,
             TensorTable& table,
             std::function<void()> on_failure);

  /// Completes or starts everything in `ready`. With `helped`, the lane of the first unit is not
  /// woken but stored there: the caller has to `help` or `start` it.
  void dispatch(const std::vector<Agreement>& ready, const Parameters& parameters, Lane** helped);

  /// Whether units are under way on this rank. Any thread.
  bool busy() { return finished_units_.load() != units_.load() || device_path_.busy(); }
  /// What the lanes of this rank are at, those with work. Stuck is who has waited for `limit_s`.
  std::vector<LaneReport> lane_reports(double limit_s) const;
  /// Seconds for which the lane that is stuck for longest has waited for others; 0 if none is.
  double longest_wait() const;
  /// Forgets what the lanes were given. For a moment when no rank is busy, on all ranks alike: the
  /// end of a round before which every rank said so, for units come out of rounds only.
  void clear_loads();

  /// Weights of lanes that this rank would propose, if those in use are far from what it measures.
  std::optional<LaneWeights> suggest_weights(const Parameters& parameters) {
    return watch_.suggest(parameters);
  }

  /// Runs lanes that nobody runs, `first` at first unless it is null, until `operation` is done, the
  /// deadline has come or no lane is left; the lanes' own threads go on. A unit that has begun is
  /// brought to its end. Any thread.
  void help(Lane* first, const Operation& operation, Clock::time_point deadline);

  /// The first failure of a unit and when it came. Any thread.
  struct Failure {
    Status status;
    Clock::time_point when;
  };
  std::optional<Failure> failure() const;
  /// Adds one, unless there is one. Any thread.
  void record_failure(const Status& status) noexcept;

  /// Lets units in flight, and new process sets that connect, end until the deadline.
  void drain(Clock::time_point deadline);
  /// Waits until the GPU has done what is queued, or the deadline, or it has failed.
  void drain_gpu(Clock::time_point deadline) noexcept;
  /// Aborts the engines; when this returns no buffer of an operation is touched any more.
  void stop(const Status& status) noexcept;

  const Teams& teams() const { return teams_; }
  DevicePath& device_path() { return device_path_; }
  /// Throws Error if a GPU, or its engine, has failed or takes too long. The driver's.
  void look_after_gpu();

  std::uint64_t units() const { return units_.load(); }
  std::uint64_t data_bytes() const { return data_bytes_.load(); }

 private:
  /// What the plans of one process set go on from; equal on all its members.
  struct Numbering {
    std::uint64_t next_seq = 0;
    LaneLoads loads;
  };

  void change_process_sets(Operation& operation, const Agreement& agreement);
  Operation* answer_with_zeros(const Agreement& agreement);
  void plan_moving(const Parameters& parameters, Lane** helped);
  void plan_team(const std::shared_ptr<const Team>& team,
                 const Parameters& parameters,
                 Lane** helped);
  void prepare_unit(int lane, const Unit& unit) noexcept;
  void run_unit(int lane, Unit& unit, PackBuffer& buffer) noexcept;
  void plan_launches();
  void launch_unit(Unit& unit) noexcept;
  void record_unit(const Unit& unit, Clock::time_point start, Clock::time_point end);
  void run_change(Unit& unit) noexcept;
  void finish(Unit& unit);
  void record_failure() noexcept;

  Engine& engine_;
  Timeline& timeline_;
  TensorTable& table_;
  const std::function<void()> on_failure_;
  Teams teams_;
  std::unordered_map<std::uint32_t, Numbering> numbering_;  ///< by process set

  // Scratch of the driver, kept for its memory.
  std::uint64_t plans_ = 0;           ///< so far; equal on all ranks
  std::vector<Operation*> moving_;    ///< to be planned
  std::vector<Operation*> finished_;  ///< nothing moves
  std::vector<Operation*> of_team_;   ///< to be planned now, of one process set
  PlanItems items_;
  UnitPlan plan_;
  std::vector<LaunchSlot> slots_;  ///< of units that the launching thread gets
  std::vector<bool> joined_;
  Unit unit_;

  LaneWatch watch_;
  DevicePath device_path_;

  std::atomic<bool> stopped_{false};
  std::atomic<std::uint64_t> units_{0};
  std::atomic<std::uint64_t> finished_units_{0};
  std::atomic<std::uint64_t> data_bytes_{0};

  std::mutex zeros_mutex_;
  std::unordered_map<Operation*, std::unique_ptr<Operation>> zeros_;  ///< of a rank that has joined

  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;

  /// A unit of the group that the launching thread is at.
  struct Launched {
    Unit unit;
    Clock::time_point start;
  };
  std::vector<std::unique_ptr<Launched>> group_;  ///< the first ones are it, the others are spare
  std::size_t grouped_ = 0;

  std::vector<std::unique_ptr<Lane>> lanes_;  ///< the engine's lanes, then the express lane
  std::unique_ptr<Lane> launcher_;            ///< of units for an engine for GPUs
  std::unique_ptr<Lane> changes_;  ///< connects and ends the engines of process sets, one by one
};

}  // namespace aiacc
