#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/base/wait_mark.h"
#include "csrc/cuda/device.h"
#include "csrc/engines/engine_context.h"
#include "csrc/planning/parameters.h"

namespace aiacc {

/// How an all-reduce on GPUs combines elements.
struct DeviceReduction {
  DataType dtype = DataType::kFloat32;  ///< of the elements, unless `wire` says another one
  ReduceOp op = ReduceOp::kSum;
  WireFormat wire = WireFormat::kTensor;
  std::uint32_t wire_detail = 0;          ///< of a coded one, see Coding
  Algorithm algorithm = Algorithm::kAny;  ///< a wish
};

/// Moves tensors in the memory of GPUs between ranks. For host memory see Engine.
///
/// Streams: every lane has a stream. What is given to an operation is what earlier work on that
/// stream has left in memory, and `recv` holds the result for later work on it. Operations are
/// ordered by that stream alone: the caller makes it wait for the producers of the tensors.
/// Memory: any of the device.
/// Blocking: operations return when they are on the stream, and wait for no GPU, except where an
/// engine says so.
/// Threads and order: all operations of an engine, and of all that were split from it, are issued
/// by one thread, in an order that is equal on all ranks over all lanes together. The *express
/// lane* is one more than the numbered lanes; it may be one of them under another number.
/// Start: construction and `split` are local. The first operation connects the ranks and blocks
/// until they are there, so a job that never uses a GPU never touches one.
/// Failure: operations throw Error. `abort` makes the GPU leave those that are under way, and later
/// ones throw its status; `quiesce` tells when the GPU has left.
class DeviceEngine {
 public:
  DeviceEngine() = default;
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;
  virtual ~DeviceEngine() = default;

  virtual const char* name() const = 0;
  virtual int lanes() const = 0;
  int express_lane() const { return lanes(); }

  /// recv[i] = op over ranks of send[i]; `send` may equal `recv` (in place), else no overlap.
  /// `count` may be 0. What `refusal` does not refuse.
  virtual void all_reduce(int lane,
                          const void* send,
                          void* recv,
                          std::size_t count,
                          const DeviceReduction& reduction) = 0;

  /// `buffer` of `root` is copied to all ranks.
  virtual void broadcast(int lane, void* buffer, std::size_t bytes, int root) = 0;

  /// Concatenates `bytes_of[r]` bytes of every rank r, in rank order, into `recv` on every rank.
  /// `send` may be the own part of `recv`.
  virtual void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) = 0;

  /// Reduces as all_reduce and leaves to every rank its own part: rank r gets `counts[r]` elements,
  /// which follow those of the ranks before it. `recv` may be the own part of `send`. In the
  /// tensor's own format: `reduction.wire` is kTensor.
  virtual void reduce_scatter(int lane,
                              const void* send,
                              void* recv,
                              const PerRank& counts,
                              const DeviceReduction& reduction) = 0;

  /// Sends `send_bytes[r]` bytes to every rank r and receives `recv_bytes[r]` from it; pieces lie
  /// one after another in rank order on both sides. What rank a sends to b is what b expects from
  /// a.
  virtual void all_to_all(int lane,
                          const void* send,
                          void* recv,
                          const PerRank& send_bytes,
                          const PerRank& recv_bytes) = 0;

  /// An engine of the same kind, with as many lanes, among some ranks only; they are renumbered by
  /// their index in `members`, which is ascending and names this rank. `split_id` is a number that
  /// no other split of this engine, or of one that came from it, has had. The new engine must end
  /// before this one; `abort` of this one does not reach it.
  virtual std::unique_ptr<DeviceEngine> split(const std::vector<int>& members,
                                              std::uint32_t split_id) = 0;

  /// A device of this rank, opened with the driver that the engine uses; -1: the first one that was
  /// opened, else the one that the context proposed. Shared with all engines that are split from
  /// this one. Any thread.
  virtual std::shared_ptr<Device> open(int ordinal) = 0;

  /// The device on which this engine's operations run. The first call decides: open(ordinal).
  /// Later ones give that number again, or -1.
  virtual std::shared_ptr<Device> device(int ordinal) = 0;

  /// The stream of a lane. Needs `device` before. The issuing thread's.
  virtual CudaStream stream(int lane) = 0;
  /// Another one for kernels that prepare the lane's next operation while one is under way.
  virtual CudaStream pack_stream(int lane) = 0;

  /// Memory of the lane for packed units, of at least so many bytes, aligned to 256, which kernels
  /// on its streams and operations on that lane can use. It is the next of a ring: what the caller
  /// did with the same address before may still be queued. Waits for the GPU when it has to grow;
  /// else not.
  virtual void* buffer(int lane, std::size_t bytes) = 0;

  /// Operations between these calls, at most one per lane, are launched together by engines with a
  /// cost per launch; by default each is launched by itself. Between them nothing else of the
  /// engine is called. Both throw what operations do. After a failure in between, the engine is
  /// only aborted. The issuing thread's.
  virtual void begin_group() {}
  virtual void end_group() {}

  /// The tail of an error message if the engine cannot perform that reduction on a device, such as
  /// "dtype uint16 (expected ...)"; else "". Equal on all ranks, if they know of each other's GPUs
  /// (EngineContext). Needs a Device::Scope of the device that it is about.
  virtual std::string refusal(const DeviceReduction& reduction) const = 0;

  /// Waits until the streams of all lanes are empty, on all devices of engines that are split from
  /// each other, or a device has failed, or the deadline; true unless the deadline came. For the
  /// end: nothing in a step calls it. Any thread.
  virtual bool quiesce(Clock::time_point deadline) noexcept = 0;

  /// Throws Error if the GPU or the library has failed since. Called periodically, by any thread;
  /// does not block.
  virtual void check() = 0;

  /// Whether the issuing thread waits for other ranks, and nothing has moved for long. Any thread.
  virtual LaneWait issue_waits() const { return {}; }
  /// The same of threads of the host that do a part of the first operation on a lane that is not
  /// over. Empty while the GPU has to do something for it, and if the engine cannot tell. Any
  /// thread.
  virtual LaneWait waits(int lane) const {
    static_cast<void>(lane);
    return {};
  }

  /// From any thread, any number of times; the first status wins.
  virtual void abort(const Status& status) noexcept = 0;
};

}  // namespace aiacc
