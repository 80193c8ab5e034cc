#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/timeline.h"
#include "csrc/control/control_plane.h"
#include "csrc/core/dispatch/dead_unit.h"
#include "csrc/core/dispatch/dispatcher.h"
#include "csrc/core/execution/communicator_table.h"
#include "csrc/core/execution/device_executor.h"
#include "csrc/core/execution/finite_check.h"
#include "csrc/core/negotiation/negotiator.h"
#include "csrc/core/submission/stall_inspector.h"
#include "csrc/core/submission/tensor_table.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/p2p/messenger.h"

namespace aiacc {

struct CoordinatorOptions {
  Parameters parameters;
  std::size_t cache_capacity = 4096;
  std::chrono::microseconds linger{
      500};  ///< how long a submission waits for others to share its round
  /// How long to ignore a peer's round that cannot progress without this rank. Also the longest
  /// delay of anything but tensors, such as a stall query.
  std::chrono::microseconds patience{500'000};
  double peer_timeout_s = 4.0;
  double stall_warn_s = 60.0;
  double stall_fail_s = 0.0;
  /// How long a unit may make no progress before all ranks compare the states of their lanes.
  /// Several times as long as a rank may be stopped, see dead_unit.
  double unit_timeout_s = 60.0;
  std::string stall_file;  ///< JSON lines of every stall are appended here; "" for none
  /// Without an engine for GPUs: how tensors are staged, see DeviceOptions.
  std::function<const CudaDriver&()> staging = &process_cuda_driver;
  int staged_device = 0;
  FiniteMode check_finite = FiniteMode::kOff;
};

/// Counters since the start.
struct CoordinatorStats {
  std::uint64_t tensors = 0;     ///< operations dispatched
  std::uint64_t units = 0;       ///< engine operations
  std::uint64_t data_bytes = 0;  ///< payload of those units
  std::uint64_t wait_ns = 0;     ///< time that callers spent in `wait`
  std::uint32_t lanes = 0;       ///< in use now
  std::uint64_t unit_bytes = 0;  ///< of tensors in host memory, now
};

/// From submission to result: negotiate -> plan -> dispatch.
///
/// Threads: public methods from any. Inside, the *loop thread* runs rounds, plans and dispatches;
/// callers wait, but for `run_alone`. A round starts when it is worth one: a unit's worth of bytes,
/// a flush or wait, the end of the linger time, a peer's round that this rank can contribute to.
/// Otherwise every thread sleeps.
/// Failure: the first fatal status is latched; everything outstanding and all later calls fail
/// with it, on every rank.
class Coordinator {
 public:
  /// `gpu`: the engine for tensors on GPUs; null: they are staged. `connector`: for messages
  /// between ranks; null: this one sends to itself alone.
  Coordinator(ControlPlane& plane,
              Engine& engine,
              Timeline& timeline,
              CoordinatorOptions options,
              DeviceEngine* gpu = nullptr,
              Connector* connector = nullptr);
  ~Coordinator() { shutdown(); }
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// A blank operation for the caller to fill: request, input, output. For a message: kind, shape
  /// in bytes, root, and the key that pairs sends with receives as its series.
  std::shared_ptr<Operation> acquire() { return table_.acquire(); }
  Handle submit(std::shared_ptr<Operation> operation);
  bool poll(Handle handle) const;
  /// Blocks until done; throws its error. The operation, with its results, is the caller's then.
  /// `on_tick` is called about once a second meanwhile; what it throws ends the wait, not the
  /// operation.
  std::shared_ptr<Operation> wait(Handle handle, const std::function<void()>& on_tick = {});
  void release(Handle handle) { table_.release(handle); }
  /// For operations on tensors on a GPU, which are done when they are queued: see DeviceExecutor.
  DeviceExecutor& device_path() { return *device_path_; }
  void flush();

  /// Registers a process set of these ranks and returns its id. Collective over all ranks; blocks
  /// until the members are connected. Throws Error(kInvalidArgument) for ranks that do not exist or
  /// are a set already, Error(kMismatch) if the ranks call this differently.
  std::uint32_t add_process_set(std::vector<int> ranks, const std::function<void()>& on_tick = {});
  /// False for set 0 and one that is not registered. Collective over all ranks, blocks. What is not
  /// ready in the set by then fails on every member; what is under way goes on.
  bool remove_process_set(std::uint32_t id, const std::function<void()>& on_tick = {});
  /// The same as `add_process_set` for this rank and others that call this with the same name and
  /// ranks: no other rank has to call anything, and the ranks may be a set already. The name is
  /// that of no other set that is being formed. Throws Error(kInvalidArgument) if this rank is not
  /// among them, Error(kMismatch) if others have told other ranks.
  std::uint32_t form_process_set(const std::string& name,
                                 std::vector<int> ranks,
                                 const std::function<void()>& on_tick = {});
  /// Takes this rank out of a set that was formed, which is removed when all members have called
  /// this. What others submit, or have submitted, and this rank has not, fails. Blocks: never.
  void leave_process_set(std::uint32_t id);
  /// The process sets that exist now, as this rank sees them.
  const CommunicatorTable& communicators() const { return communicators_; }

  /// Proposes new parameters to all ranks; they take effect together, after a later round. Throws
  /// Error(kInvalidArgument) if the engine has not that many lanes. Blocks: never.
  void propose(const Parameters& parameters);

  /// Ends the loop thread and tells the other ranks. Idempotent. `how` follows "rank N" in
  /// what they are told: "'s script has ended; ..."; empty: that it has shut down.
  void shutdown(std::string how = "");

  CoordinatorStats stats() const;

 private:
  std::int64_t change_process_sets(OpKind kind,
                                   std::string name,
                                   std::vector<std::int64_t> numbers,
                                   const std::function<void()>& on_tick);
  Handle submit_message(std::shared_ptr<Operation> operation);
  void publish(const Parameters& parameters);
  void admit_on_gpu(Operation& operation);
  Status end_status() const;
  void loop();
  void wait_until_done(const Operation& operation, const std::function<void()>& on_tick);
  void run_alone(const Operation& operation);
  Clock::time_point linger_end() const;
  bool want_round();
  bool busy();
  bool is_idle() const;
  bool is_vain();
  void run_round(Runner runner = Runner::kLoop);
  void propose_weights();
  void throw_lane_failure();
  void take_answers(std::uint32_t asked, const Answers& answers);
  void look_after_peers_and_stalls();
  Clock::time_point next_deadline();
  void fail(const Status& status) noexcept;

  ControlPlane& plane_;
  Engine& engine_;
  Timeline& timeline_;
  const CoordinatorOptions options_;
  const Clock::duration tick_;  ///< period of the checks while something is outstanding

  TensorTable table_;
  std::atomic<bool> flush_{false};
  std::string ending_;  ///< what `shutdown` was told; constant once `stopping_`
  std::atomic<bool> stopping_{false};
  std::atomic<bool> in_round_{false};  ///< whoever runs rounds waits for other ranks
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> unit_bytes_{0};  ///< of the current epoch, for submitting threads
  std::atomic<std::uint32_t> lanes_{0};       ///< of the current epoch
  std::atomic<double> gpu_byte_weight_{1.0};  ///< Operation::byte_weight of tensors on GPUs

  std::mutex proposal_mutex_;
  std::optional<Parameters> proposal_;  ///< on its way to the negotiator

  std::mutex
      round_mutex_;  ///< guards what follows, down to the scratch: whoever runs rounds has it
  Negotiator negotiator_;
  StallInspector stalls_;
  StallFile stall_file_;
  Clock::time_point looked_{};
  DeadUnitWatch unit_watch_;
  Clock::time_point vain_since_{};  ///< when another rank's vain round was seen, or zero
  Bytes message_;
  std::vector<Operation*> drained_;

  std::atomic<std::uint64_t> tensors_{0};
  std::atomic<std::uint64_t> wait_ns_{0};

  const std::unique_ptr<FiniteCheck> finite_;  ///< null: inputs are not looked at
  const std::unique_ptr<DeviceExecutor> device_path_;
  CommunicatorTable communicators_;
  Dispatcher dispatcher_;  ///< its `dispatch` is the loop thread's
  Messenger messenger_;
  std::mutex shutdown_mutex_;
  std::thread loop_;
};

}  // namespace aiacc
