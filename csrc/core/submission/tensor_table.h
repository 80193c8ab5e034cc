#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/raw_bytes.h"
#include "csrc/base/socket.h"
#include "csrc/core/negotiation/message.h"
#include "csrc/core/negotiation/process_set_table.h"
#include "csrc/cuda/device_pool.h"
#include "csrc/planning/device_placement.h"

namespace aiacc {

using Handle = std::int64_t;

struct Operation;

/// Callbacks of a front-end that does not just wait for a handle. Owned by its operation.
class Completion {
 public:
  /// `told`: whether `done` is called, and the handle belongs to the table; else whoever submitted
  /// waits for the handle.
  explicit Completion(bool told) : told_(told) {}
  virtual ~Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  bool told() const { return told_; }

  /// Host memory for what tensor `index` of an all-gather or all-to-all gives, whose size the ranks
  /// have agreed on. Null: the core takes memory of its own. Once for each tensor at most, in the
  /// thread that is about to move its bytes; not for an operation without bytes.
  virtual void* allocate(Operation& operation, std::size_t index) noexcept = 0;

  /// Called once when the operation ends, well or badly, by the thread that completes it; the
  /// operation lives until this returns. That may be the loop thread, which then holds its
  /// mutex: must not block.
  virtual void done(Operation& operation) noexcept = 0;

 private:
  const bool told_;
};

/// Memory of one tensor of an operation.
struct TensorBuffers {
  const void* input = nullptr;
  /// An all-gather in host memory has room here for what all members give, if their shapes are
  /// equal; else, and if it is null, the result is in `gathered`.
  void* output = nullptr;
  /// Error feedback of a coded all-reduce, float32 of as many elements; null: none. This rank's own
  /// affair, but it must be the same memory in every step.
  void* residual = nullptr;
  /// Rows that come from every member of the process set: all-gather and all-to-all.
  std::vector<std::int64_t> first_extents;
  RawBytes gathered;                                       ///< the output of those
  std::shared_ptr<DeviceBlock> gathered_on_gpu = nullptr;  ///< the same for tensors on a GPU
};

/// One submitted operation, from submit to wait.
///
/// Written by the submitting thread before it enters the table, by the loop thread until it is
/// dispatched, then by the lane that finishes it; `done` publishes the result.
struct Operation : Submitted {
  std::vector<TensorBuffers> buffers = std::vector<TensorBuffers>(1);  ///< of every tensor
  /// What an automatic name begins with, and is counted by; empty: the kind's name.
  std::string series;
  bool zeros = false;       ///< a joined rank's: lanes clear the inputs
  SharedPlacement devices;  ///< Response::devices
  /// Tensors on a GPU: the stream that writes the inputs and may overwrite the outputs until
  /// `submit`.
  CudaStream stream = nullptr;
  Mark written;                 ///< where `stream` was in `submit`
  std::vector<Mark> completed;  ///< where the results are there; a mark for every unit of it
  /// Weight of a tensor's byte when deciding whether enough bytes wait for a round.
  double byte_weight = 1.0;
  Handle handle = 0;
  Clock::time_point submitted;
  Clock::time_point finished;              ///< of tensors on a GPU: when their work was queued
  std::int64_t value = 0;                  ///< Response::value
  std::uint64_t seed = 0;                  ///< of a coded all-reduce, see ChanceSeeds
  std::unique_ptr<Completion> completion;  ///< null: somebody waits for the handle
  std::atomic<std::uint32_t> slices_left{0};
  std::atomic<bool> dispatched{false};
  std::atomic<bool> done{false};
  Status status;

  std::uint64_t weighted_bytes() const {
    return static_cast<std::uint64_t>(static_cast<double>(request.total_bytes()) * byte_weight);
  }
};

/// Makes `buffers.gathered`, of a tensor of `operation`, so large, and returns where it is; its
/// contents are not set. How large it must be is the other ranks' decision: throws Error(kEngine)
/// with the operation and the bytes if this process cannot have so much.
void* make_result(TensorBuffers& buffers, std::size_t bytes, const Operation& operation);

/// Operations in flight, by process set and name, and results not yet collected, by handle.
///
/// Threads: any. Handles are never reused in a process, whatever table they are from.
class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(const TensorTable&) = delete;
  TensorTable& operator=(const TensorTable&) = delete;

  /// Takes a recycled or new operation to be filled in.
  std::shared_ptr<Operation> acquire();

  /// What waits for negotiation after a submission.
  struct Queued {
    std::uint64_t bytes = 0;  ///< weighted
    bool first = false;       ///< nothing waited before
  };
  /// Queues it and returns its handle. An empty name is replaced by an automatic one, the n-th of
  /// this series and process set in this generation. A message, which is not negotiated, counts as
  /// dispatched and leaves `queued` as it is. Throws Error(kInvalidArgument) if the name is in
  /// flight in the process set already, or the fatal error after `close`.
  Handle submit(std::shared_ptr<Operation> operation, Queued& queued);

  /// Counts automatic names from 0 again, under a new generation: all ranks do so at the same time,
  /// whatever each has submitted before.
  void next_generation();

  /// Moves what was queued since the last call to `out`. The loop thread's.
  void drain(std::vector<Operation*>& out);
  bool has_queued() const { return queued_count_.load(std::memory_order_acquire) > 0; }
  std::uint64_t queued_bytes() const { return queued_bytes_.load(std::memory_order_acquire); }
  /// When the oldest queued operation was submitted; meaningful while something is queued.
  Clock::time_point queued_since() const { return queued_since_.load(std::memory_order_acquire); }

  /// Publishes results, wakes who waits for them, and tells those who wanted to be told, whose
  /// handles it releases.
  void complete(const std::vector<Operation*>& operations, const Status& status);

  /// The operation behind a handle; throws Error(kInvalidArgument) for an unknown one.
  std::shared_ptr<Operation> find(Handle handle) const;
  /// Forgets a handle; an unknown one is ignored. Throws Error(kInvalidArgument) while it is in
  /// flight.
  void release(Handle handle);

  /// Sleeps until the operation is done or the deadline has come; true when done.
  bool wait(const Operation& operation, Clock::time_point deadline);

  /// Fails everything in flight and all later submissions with `status`; the first one wins.
  void close(const Status& status);

  /// Operations submitted and not done.
  std::size_t in_flight() const { return in_flight_count_.load(std::memory_order_acquire); }
  /// Labels of those of `operations` that are in flight, in words.
  std::string labels(const std::vector<const Operation*>& operations) const;
  /// Everything that is not dispatched yet, and messages, with no ranks. Not leaves: no rank has to
  /// leave a set.
  std::vector<PendingName> undispatched(const ProcessSetTable& sets, Clock::time_point now) const;

 private:
  /// The names are those of the operations.
  using ByName = std::unordered_map<std::string_view, Operation*>;
  using ByHandle = std::unordered_map<Handle, std::shared_ptr<Operation>>;

  std::string automatic_name(const Operation& operation);

  mutable std::mutex mutex_;
  std::map<std::uint32_t, ByName> in_flight_;  ///< by process set
  ByHandle by_handle_;
  std::vector<ByName::node_type> spare_names_;  ///< kept for their memory, like `pool_`
  std::vector<ByHandle::node_type> spare_handles_;
  std::vector<Operation*> queue_;
  std::vector<std::shared_ptr<Operation>> pool_;
  std::uint64_t generation_ = 0;
  std::map<std::pair<std::uint32_t, std::string>, std::uint64_t> automatic_;  ///< names given
  Status closed_;
  std::atomic<std::uint64_t> queued_bytes_{0};
  std::atomic<Clock::time_point> queued_since_{};
  std::atomic<std::size_t> queued_count_{0};
  std::atomic<std::size_t> in_flight_count_{0};

  std::mutex done_mutex_;
  std::condition_variable done_;
  std::atomic<int> sleepers_{0};
};

}  // namespace aiacc
