#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/socket.h"
#include "csrc/core/execution/finite_check.h"
#include "csrc/core/execution/host_unit.h"
#include "csrc/cuda/device_pool.h"
#include "csrc/engines/device_engine.h"

namespace aiacc {

/// A unit that is not over, and for how long this rank's host has waited for others in it.
struct UnitWait {
  UnitId id;
  std::string name;         ///< of its tensors
  double seconds = 0;       ///< see LaneWait
  std::uint32_t ahead = 0;  ///< see Communicator::distance_to
};

struct DeviceOptions {
  /// For staging: returns the CUDA driver, which outlives this; called with the first tensor.
  std::function<const CudaDriver&()> driver;
  int proposed = 0;         ///< for staging: the GPU of a rank that never had a tensor to tell one
  int lanes = 0;            ///< of the job's engine for host memory, the express lane included
  double stall_warn_s = 0;  ///< report what the GPU has not done for so long; 0: never
  double stall_fail_s = 0;  ///< fail then; 0: never
  FiniteCheck* finite = nullptr;  ///< what looks at inputs, or null; outlives this
};

/// Handles operations on tensors in GPU memory, whose units are either *queued* on streams for an
/// engine for GPUs, or *staged* through pinned memory and the engine for host memory. A job has one
/// of the two, chosen when its engines are made; `queues` is all that the dispatcher asks about it.
///
/// Order by events, no thread waits for the GPU: `admit` marks the stream that writes the inputs;
/// the stream of the unit's lane waits for the marks of its tensors; the end of the unit is marked
/// there; `order_after` makes the stream that reads the results wait for those marks. An operation
/// is done, in the sense of the table, when it is queued.
/// Lifetime: who submits keeps the memory until the operation is done *and* whatever may overwrite
/// or reuse it is ordered after it, by `order_after`. With torch's caching allocator that is the
/// tensor kept by its handle until `synchronize`, on the stream that it was allocated on.
///
/// Threads: any, except where it says so. The driver takes `mutex_`, so nobody waits with it.
class DeviceExecutor {
 public:
  /// Told of a unit whose results are queued, and when work on it began. The unit is still the
  /// caller's.
  using Finished = std::function<void(Unit& unit, Clock::time_point start)>;

  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;
  virtual ~DeviceExecutor() = default;

  /// Before an operation enters the table, in the thread that submits it. Throws
  /// Error(kUnsupported) if the job cannot do it, or the stream is being captured into a graph;
  /// Error(kInvalidArgument) for a GPU that is not there; Error(kEngine) if CUDA fails.
  void admit(Operation& operation);

  /// What is queued on `stream` from now on comes after the operation, which is done. Throws
  /// Error(kUnsupported) if the stream is being captured.
  void order_after(const Operation& operation, CudaStream stream);

  /// Queues on `stream`, after the operation, a copy of the result of an all-gather or all-to-all
  /// to `to`, device memory of as many bytes.
  void copy_gathered(Operation& operation, std::size_t tensor, void* to, CudaStream stream);

  /// Whether units are known to be in flight on the GPU, or a finding about their inputs has yet to
  /// be thrown.
  bool busy();
  /// Throws Error(kEngine) if the GPU has failed, Error(kNotFinite) if it has found such an input
  /// and that shall be an error, Error(kTimeout) if a unit takes longer than `stall_fail_s`. Does
  /// not wait. The loop thread's.
  void look_after();
  /// Waits until the GPU has done what is queued, or has failed, or the deadline, and says so in
  /// the log if that has come.
  void drain(Clock::time_point deadline) noexcept;

  /// Whether units have the size for GPUs and are run by one launching thread, in the order of
  /// their responses; else they are units like those in host memory, and run by the threads of
  /// their lanes.
  virtual bool queues() const = 0;
  /// Where queued units on a lane of the plan are issued: those of one such lane follow each other.
  virtual std::uint32_t launch_lane(std::uint32_t lane) const { return lane; }

  /// Gives a communicator what its units on GPUs need, besides `engine`. Collective over the
  /// members, in the same order on all of them; throws what DeviceEngine::split throws.
  virtual void connect(Communicator& communicator) = 0;
  /// Ends what Communicator::abort does not reach, also of units that come later.
  virtual void abort(const Status&) noexcept {}

  /// Starts on a unit of a lane, in the thread that runs it, before `run` of the one before it, if
  /// it is staged. Throws what CUDA throws.
  virtual void prepare(const Unit&, int) {}
  /// Moves a unit of a lane of the plan, in the thread that runs it. One that is `joined` may be
  /// kept until the next ones come, and what is left in its place is to be used again: `finished`
  /// is told of each in turn. Throws what engine and CUDA throw; then it knows of none any more.
  virtual void run(Unit& unit, int lane, PackBuffer& buffer, const Finished& finished) = 0;

  /// The first of the units that were issued to the GPUs and are, as far as is known, not over.
  std::optional<UnitWait> first_queued();
  /// The unit that the launching thread issues to an engine, if it does; of a group, the last one.
  virtual std::optional<UnitWait> issuing() { return std::nullopt; }

 protected:
  struct Gpu {
    std::shared_ptr<Device> device;
    std::shared_ptr<DevicePool> pool;  ///< for results of all-gather and all-to-all
  };
  /// A unit whose results are queued on a GPU and, as far as is known, are not there yet.
  struct Queued {
    std::shared_ptr<Device> device;
    Mark done;
    /// What moves it, alive as long as its communicator, and a lane of that; null: nobody waits for
    /// others.
    const DeviceEngine* engine = nullptr;
    int lane = 0;
    ReportPool::Taken checked = nullptr;
    UnitId id = {};
    std::string name = {};
    std::weak_ptr<const Communicator> communicator = {};
    Clock::time_point since = {};
    bool reported = false;
  };

  explicit DeviceExecutor(const DeviceOptions& options)
      : stall_warn_s_(options.stall_warn_s),
        stall_fail_s_(options.stall_fail_s),
        finite_(options.finite) {}

  /// The GPU of that number, opened if need be, which can take many seconds: only who needs it
  /// waits for that. -1: the first one that was used, or a proposal. None goes before the end.
  /// Throws Error(kInvalidArgument) if there is none of that number, Error(kEngine) if CUDA fails.
  const Gpu& gpu(int ordinal);
  /// The unit is on its way until the GPU has come to the mark. Its operations have the mark from
  /// now on. The caller fills in what comes first, down to `checked`.
  void add(const Unit& unit, Queued queued);
  /// Ends what has to end with the context of a device.
  template <class Owned>
  static void end_on_gpu(const Device& device, std::unique_ptr<Owned> owned) {
    try {
      const Device::Scope scope(device);
      owned.reset();
    } catch (const Error&) {
      static_cast<void>(owned.release());  // The driver is shutting down, and this with it.
    }
  }
  /// Forgets all units, whose reports are memory of GPUs that are about to go.
  void forget() { queued_.clear(); }

 private:
  /// Opens a GPU for `gpu`; -1: the one that is proposed.
  virtual std::shared_ptr<Device> open(int ordinal) = 0;
  /// The rest of the text of an error if it cannot do what is asked; else "". Needs a
  /// Device::Scope.
  virtual std::string refusal(const Request& request) const = 0;
  /// Waits until the GPUs have done what is queued, or have failed, or the deadline; true unless
  /// the deadline came.
  virtual bool quiesce(Clock::time_point deadline) noexcept = 0;

  const Gpu* find_gpu(int ordinal);
  void order_after(const Operation& operation, CudaStream stream, const Device& device);
  void retire();

  const double stall_warn_s_;
  const double stall_fail_s_;
  FiniteCheck* const finite_;

  std::mutex opening_;     ///< held for as long as it takes; before the next one
  std::mutex gpus_mutex_;  ///< guards what follows
  std::map<int, Gpu> gpus_;
  int first_gpu_ = -1;

  std::mutex mutex_;  ///< guards what follows, and Operation::completed
  std::deque<Queued> queued_;
};

}  // namespace aiacc
