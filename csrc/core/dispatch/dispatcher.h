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
#include "csrc/core/execution/chance_seeds.h"
#include "csrc/core/execution/communicator_table.h"
#include "csrc/core/execution/finite_check.h"
#include "csrc/planning/launch_groups.h"

namespace aiacc {

/// From negotiated response to result: plans units and queues them on lanes.
///
/// Threads: whoever runs rounds, except where it says so.
///
/// Order: units of all process sets run on the same lanes, in the order of their responses, which
/// is the same on all ranks. The lane of a unit follows from what its set alone has agreed on and
/// from the rounds, in which all ranks take part: so all members put it into the same lane,
/// whatever else each of them runs there. Of the units that are not done take the first in the
/// order of responses: on none of its members another one is before it in its lane, so all of them
/// come to run it, and it ends. Hence ranks cannot deadlock across lanes.
///
/// Units of tensors on GPUs that are queued on streams (DeviceExecutor) are issued by one launching
/// thread in the order of their responses. Units on GPUs are finished here when they are queued.
class Dispatcher {
 public:
  /// `engine`: that of all ranks for host memory. `finite`, what looks at inputs, or null.
  /// `on_failure` is called by the thread that failed a unit, after `failure` has it. All
  /// references outlive this.
  Dispatcher(Engine& engine,
             CommunicatorTable& communicators,
             DeviceExecutor& gpus,
             FiniteCheck* finite,
             Timeline& timeline,
             TensorTable& table,
             std::function<void()> on_failure);

  /// Completes or starts everything in `ready`.
  void dispatch(const std::vector<Response>& ready, const Parameters& parameters);

  /// Whether units are under way on this rank; of those on GPUs, whether they are queued. Any
  /// thread.
  bool busy() const { return finished_units_.load() != units_.load(); }
  /// Forgets what the lanes were given. For a moment when no rank is busy, on all ranks alike: the
  /// end of a round before which every rank said so, for units come out of rounds only.
  void clear_loads();

  /// Weights of lanes that this rank would propose, if those in use are far from what it measures.
  std::optional<LaneWeights> suggest_weights(const Parameters& parameters) {
    return throughput_.suggest(parameters);
  }

  /// A caller whose operation is alone runs a unit of it itself instead of waking a lane's worker:
  /// until `take_kept`, the lane of the first one on the express lane, or of at most `bytes`, is
  /// kept for it. Others may take long, and the caller has signals to look after.
  void keep_for(const Operation& operation, std::uint64_t bytes) {
    kept_for_ = &operation;
    kept_bytes_ = bytes;
  }
  /// The lane that is kept, or null; whoever calls has to `help` it before it waits for anything.
  Lane* take_kept();

  /// What the lanes for host memory are at, those with work. Stuck is who has waited for `limit_s`.
  std::vector<LaneReport> host_reports(double limit_s) const;
  /// The same with, as one more lane, the GPUs, where units end in the order in which they are
  /// issued. Throws if a GPU has failed.
  std::vector<LaneReport> reports(double limit_s);

  /// The first failure of a unit and when it came. Any thread.
  struct Failure {
    Status status;
    Clock::time_point when;
  };
  std::optional<Failure> failure() const;
  /// Records a failure, unless one is recorded already. Any thread.
  void record_failure(const Status& status) noexcept;

  /// Lets units in flight, and new process sets that connect, end until the deadline. Whether those
  /// of the lanes for host memory have.
  bool drain(Clock::time_point deadline);
  /// Aborts the engines; when this returns no thread of this touches a buffer of an operation any
  /// more.
  void stop(const Status& status) noexcept;

  std::uint64_t units() const { return units_.load(); }
  std::uint64_t data_bytes() const { return data_bytes_.load(); }

 private:
  /// State that successive plans of one process set share; equal on all its members.
  struct Numbering {
    std::uint64_t next_seq = 0;
    LaneLoads loads;
    ChanceSeeds seeds = {};
  };

  void change_process_sets(Operation& operation, const Response& response);
  void plan_moving(const Parameters& parameters);
  void plan_communicator(const std::shared_ptr<const Communicator>& communicator,
                         const Parameters& parameters);
  /// Whether the launching thread runs units of such operations.
  bool launches(const Request& request) const { return launcher_ != nullptr && request.on_gpu(); }
  void push(Unit& unit);
  void prepare_unit(const Unit& unit) noexcept;
  /// These say whether the lane may go on: false after a failure.
  bool run_unit(Unit& unit, PackBuffer& buffer) noexcept;
  bool run_change(Unit& unit) noexcept;
  void plan_launches();
  void finish(Unit& unit, Clock::time_point start);
  void record_failure() noexcept;

  Engine& engine_;
  CommunicatorTable& communicators_;
  DeviceExecutor& gpus_;
  FiniteCheck* const finite_;
  Timeline& timeline_;
  TensorTable& table_;
  const std::function<void()> on_failure_;
  const DeviceExecutor::Finished finished_unit_;
  std::unordered_map<std::uint32_t, Numbering> numbering_;  ///< by process set

  std::uint64_t plans_ = 0;  ///< so far; equal on all ranks
  const Operation* kept_for_ = nullptr;
  std::uint64_t kept_bytes_ = 0;
  Lane* kept_ = nullptr;

  // Scratch of the loop thread, kept for its memory.
  std::vector<Operation*> moving_;           ///< to be planned
  std::vector<Operation*> finished_;         ///< nothing moves
  std::vector<Operation*> of_communicator_;  ///< to be planned now, of one process set
  PlannerInput planner_input_;
  UnitPlan plan_;
  std::vector<LaunchSlot> slots_;  ///< of units that the launching thread gets
  std::vector<bool> joined_;
  Unit unit_;

  LaneThroughput throughput_;

  std::atomic<bool> stopped_{false};
  std::atomic<std::uint64_t> units_{0};
  std::atomic<std::uint64_t> finished_units_{0};
  std::atomic<std::uint64_t> data_bytes_{0};

  /// With these a rank that has joined answers those of the others.
  std::unordered_map<Operation*, std::unique_ptr<Operation>> zeros_;
  std::mutex zeros_mutex_;

  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;

  std::vector<std::unique_ptr<Lane>> lanes_;  ///< the numbered ones, then the express lane
  std::unique_ptr<Lane> launcher_;  ///< of units that are queued on GPUs; null if none are
  std::unique_ptr<Lane> changes_;   ///< connects and ends the engines of process sets, one by one
};

}  // namespace aiacc
