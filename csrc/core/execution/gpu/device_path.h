#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/core/execution/finite_check.h"
#include "csrc/core/execution/gpu/device_unit.h"
#include "csrc/core/execution/gpu/used_gpus.h"
#include "csrc/core/execution/unit.h"
#include "csrc/core/submission/tensor_table.h"
#include "csrc/engines/device_engine.h"

namespace aiacc {

struct DevicePathOptions {
  std::string missing;  ///< why there is neither an engine nor staging, for errors
  /// Without an engine: tensors pass through pinned memory and the engine of their team for host
  /// memory, with this driver, which outlives all; asked for with the first tensor. Null: they are
  /// refused.
  std::function<const CudaDriver&()> staging;
  int lanes = 0;            ///< of the job's engine for host memory, the express lane included
  int staged_device = 0;    ///< of a rank that never had a tensor to tell one
  double stall_warn_s = 0;  ///< report what the GPU has not done for so long; 0: never
  double stall_fail_s = 0;  ///< fail then; 0: never
  FiniteCheck* finite = nullptr;  ///< what looks at inputs, or null; outlives this
};

/// What is special about operations on tensors in the memory of a GPU.
///
/// Order by events, no thread waits for the GPU: `admit` marks the stream that writes the inputs; the
/// stream of the unit's lane waits for the marks of its tensors; the end of the unit is marked there;
/// `order_after` makes the stream that reads the results wait for those marks. An operation is done,
/// in the sense of the table, when it is queued.
/// Lifetime: who submits keeps the memory until the operation is done *and* whatever may overwrite or
/// reuse it is ordered after it, by `order_after`. With torch's caching allocator that is the tensor
/// kept by its handle until `synchronize`, on the stream that it was allocated on.
///
/// Threads: any, except where it says so.
class DevicePath {
 public:
  /// `engine`, that of all ranks, outlives this; null: staging, or requests are refused.
  explicit DevicePath(DeviceEngine* engine, DevicePathOptions options = {});
  DevicePath(const DevicePath&) = delete;
  DevicePath& operator=(const DevicePath&) = delete;

  /// Whether units run in one launching thread, in the order of their agreement; else in their lanes'.
  bool queues() const { return engine_ != nullptr; }

  FiniteCheck* finite() const { return options_.finite; }

  /// Before an operation enters the table, in the thread that submits it. Throws Error(kUnsupported)
  /// if the job has no engine for GPUs, the engine cannot do it, or the stream is being captured into
  /// a graph; Error(kInvalidArgument) for a GPU that is not there; Error(kEngine) if CUDA fails.
  void admit(Operation& operation);

  /// Whether units are staged: see Staging.
  bool stages() const { return engine_ == nullptr && options_.staging; }

  /// Staging: starts on a unit of a lane, in the thread that runs the lane, before `run` of the one
  /// before it. Throws what CUDA throws.
  void prepare(const Unit& unit, int lane);
  /// Staging: one unit, in the thread of its lane. Throws what the engine and CUDA throw.
  void run(const Unit& unit, int lane, PackBuffer& buffer);

  /// With an engine, in the launching thread: starts on a unit, which outlives `launch`: what comes
  /// before its operation is queued. Throws what the engine and CUDA throw.
  void start(const Unit& unit, int lane);
  /// Issues the units that were started since the last call, which are one of plan_groups' groups, and
  /// queues what comes after. Throws the same.
  void launch();
  /// Forgets them, after an error.
  void drop() noexcept { started_.clear(); }
  /// Where units of a lane of the plan are issued by that engine.
  std::uint32_t launch_lane(std::uint32_t lane) const;

  /// What is queued on `stream` from now on comes after the operation, which is done. Throws
  /// Error(kUnsupported) if the stream is being captured.
  void order_after(const Operation& operation, CudaStream stream);

  /// Queues a copy of what an all-gather or all-to-all gave to `to`, device memory of as many bytes,
  /// on `stream`, after the operation.
  void copy_gathered(Operation& operation, std::size_t tensor, void* to, CudaStream stream);

  /// Whether units are on their way on the GPU, as far as is known, or what was found in their inputs
  /// is to be thrown.
  bool busy();
  /// Throws Error(kEngine) if the GPU has failed, Error(kNotFinite) if it has found such an input and
  /// that shall be an error, Error(kTimeout) if a unit takes longer than
  /// `stall_fail_s`. Does not wait. The driver's.
  void look_after();

  /// Waits until the GPU has done what is queued, or has failed, or the deadline; true unless the
  /// deadline came.
  bool quiesce(Clock::time_point deadline) noexcept;
  /// Staging: ends the waits for copies to the host. Any thread.
  void abort(const Status& status) noexcept { gpus_.abort(status); }

 private:
  /// A unit of the launching thread that is not issued yet.
  struct Started {
    const Unit& unit;
    DeviceEngine& engine;
    std::shared_ptr<Device> device;
    DeviceUnit work;
  };
  /// A unit that is on a stream.
  struct Queued {
    std::shared_ptr<Device> device;
    Mark done;
    std::string name;
    Clock::time_point since;
    ReportPool::Taken checked;
    bool reported = false;
  };

  UsedGpus::Setup setup() const;
  UsedGpus::Gpu& own_gpu(const Unit& unit);
  void wait_for_inputs(const Unit& unit, CudaStream stream, const Device& device) const;
  void order_after(const Operation& operation, CudaStream stream, const Device& device);
  void check_reductions(const Request& request) const;
  int lane_of(const DeviceEngine& engine, int lane) const;
  void note(const Unit& unit,
            const std::shared_ptr<Device>& device,
            const Mark& done,
            ReportPool::Taken checked);
  void refuse(const Request& request, const std::string& problem) const;
  void retire();
  void collect_rest() noexcept;

  DeviceEngine* const engine_;
  const DevicePathOptions options_;
  UsedGpus gpus_;
  std::vector<Started> started_;  ///< the launching thread's
  std::mutex mutex_;  ///< guards what follows; the driver takes it, so nobody waits with it
  std::deque<Queued> queued_;
};

}  // namespace aiacc
