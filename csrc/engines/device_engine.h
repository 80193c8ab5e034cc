#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "csrc/base/socket.h"
#include "csrc/cuda/device.h"
#include "csrc/engines/engine.h"
#include "csrc/kernels/batch_copy.h"
#include "csrc/planning/parameters.h"

namespace aiacc {

/// How the elements of an all-reduce are added up on GPUs.
struct DeviceReduction {
  DataType dtype = DataType::kFloat32;  ///< of the elements, unless `wire` says another one
  ReduceOp op = ReduceOp::kSum;
  WireFormat wire = WireFormat::kTensor;
  Algorithm algorithm = Algorithm::kAny;  ///< a wish
};

/// Whether there is no DataType for what travels.
constexpr bool is_float8(WireFormat wire) {
  return wire == WireFormat::kFloat8E4M3 || wire == WireFormat::kFloat8E5M2;
}

/// Of the elements that are added up, unless they are 8-bit floats.
constexpr DataType dtype_on_wire(const DeviceReduction& reduction) {
  return reduction.wire == WireFormat::kFloat16    ? DataType::kFloat16
         : reduction.wire == WireFormat::kBFloat16 ? DataType::kBFloat16
                                                   : reduction.dtype;
}

/// An engine for tensors in the memory of a GPU. What engine.h says holds, except for this.
///
/// Streams: every lane has a stream. What is given to an operation is what earlier work on that
/// stream has left in memory, and `recv` holds the result for later work on it. Nothing else orders
/// an operation: who calls makes the stream wait for whoever wrote the tensors.
/// Memory: any of the device. In reduce_scatter `recv` may be the own part of `send`, and in all_gather
/// `send` the own part of `recv`.
/// Blocking: operations return when they are on the stream, and wait for no GPU, except where an
/// engine says so.
/// Threads and order: all operations of an engine, and of all that were split from it, are issued by one
/// thread, in an order that is equal on all ranks over all lanes together.
/// Start: construction and `split` concern this rank alone; the first operation connects the ranks,
/// and waits for them, so that a job which never uses a GPU does not touch it.
/// Failure: `abort` makes the GPU leave operations; `quiesce` tells when it has.
class DeviceEngine : public Engine {
 public:
  DeviceEngine* as_device() override { return this; }

  /// As all_reduce with the factor 1, which is this with a reduction of a dtype and an op only.
  virtual void all_reduce_on_wire(int lane,
                                  const void* send,
                                  void* recv,
                                  std::size_t count,
                                  const DeviceReduction& reduction) = 0;

  /// A device of this rank, opened with the driver that the engine uses; -1: the first one that was
  /// opened, else the one that the context proposed. Shared with all engines that are split from this
  /// one. Any thread.
  virtual std::shared_ptr<Device> open(int ordinal) = 0;

  /// The device that the operations of this engine are about. The first call decides: open(ordinal).
  /// Later ones give that number again, or -1.
  virtual std::shared_ptr<Device> device(int ordinal) = 0;

  /// The stream of a lane. Needs `device` before. The issuing thread's.
  virtual CudaStream stream(int lane) = 0;
  /// Another one for kernels that prepare the lane's next operation while one is under way.
  virtual CudaStream pack_stream(int lane) = 0;

  /// Memory of the lane for packed units, of at least so many bytes, aligned to 256, which kernels on
  /// its streams and operations on that lane can use. It is the next of a ring: what the caller did
  /// with the same address before may still be queued. Waits for the GPU when it has to grow; else not.
  virtual void* buffer(int lane, std::size_t bytes) = 0;

  /// Operations between these two, at most one on a lane, are handed over together, for engines that
  /// pay for every time they do so; the default is that each is handed over by itself. Between them nothing
  /// else of the engine is called. Both throw what operations do. After a failure in between, the
  /// engine is only aborted. The issuing thread's.
  virtual void begin_group() {}
  virtual void end_group() {}

  /// The rest of the text of an error if it cannot do that reduction on a device,
  /// such as "dtype uint16 (expected ...)"; else "". Equal on all ranks, if they know of each other's GPUs
  /// (EngineContext). Needs a
  /// Device::Scope of the device that it is about.
  virtual std::string refusal(const DeviceReduction& reduction) const = 0;

  /// Waits until the streams of all lanes are empty, on all devices of engines that are split from each
  /// other, or a device has failed, or the deadline; true unless the deadline came. For the end:
  /// nothing in a step calls it. Any thread.
  virtual bool quiesce(Clock::time_point deadline) noexcept = 0;

  /// Throws Error if the GPU or the library has failed since. Called now and then by any thread; does
  /// not wait.
  virtual void check() = 0;
};

}  // namespace aiacc
