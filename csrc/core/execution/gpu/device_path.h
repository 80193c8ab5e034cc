#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "csrc/core/execution/device_executor.h"
#include "csrc/core/execution/gpu/units_on_gpu.h"
#include "csrc/core/submission/tensor_table.h"
#include "csrc/engines/device_engine.h"

namespace aiacc {

struct DevicePathOptions {
  /// For staging: returns the CUDA driver, which outlives this; called with the first tensor.
  std::function<const CudaDriver&()> driver;
  int proposed = 0;         ///< for staging: the GPU of a rank that never had a tensor to tell one
  int lanes = 0;            ///< of the job's engine for host memory, the express lane included
  double stall_warn_s = 0;  ///< report what the GPU has not done for so long; 0: never
  double stall_fail_s = 0;  ///< fail then; 0: never
  FiniteCheck* finite = nullptr;  ///< what looks at inputs, or null; outlives this
};

/// Handles operations on tensors in GPU memory.
///
/// Order by events, no thread waits for the GPU: `admit` marks the stream that writes the inputs;
/// the stream of the unit's lane waits for the marks of its tensors; the end of the unit is marked
/// there; `order_after` makes the stream that reads the results wait for those marks. An operation
/// is done, in the sense of the table, when it is queued.
/// Lifetime: who submits keeps the memory until the operation is done *and* whatever may overwrite
/// or reuse it is ordered after it, by `order_after`. With torch's caching allocator that is the
/// tensor kept by its handle until `synchronize`, on the stream that it was allocated on.
///
/// Threads: any.
class DevicePath {
 public:
  /// `engine`, that of all ranks, outlives this; null: tensors are staged. This is where it is
  /// decided.
  DevicePath(DeviceEngine* engine, DevicePathOptions options);
  DevicePath(const DevicePath&) = delete;
  DevicePath& operator=(const DevicePath&) = delete;

  /// What moves units.
  DeviceExecutor& executor() { return *executor_; }

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
  bool busy() { return units_.busy(); }
  /// Throws what UnitsOnGpu::look_after does. The loop thread's.
  void look_after() { units_.look_after(); }
  /// Waits until the GPU has done what is queued, or has failed, or the deadline, and says so in
  /// the log if that has come.
  void drain(Clock::time_point deadline) noexcept;

 private:
  void order_after(const Operation& operation, CudaStream stream, const Device& device);

  std::unique_ptr<DeviceExecutor>
      executor_;  ///< before `units_`, whose reports are memory of its GPUs
  UnitsOnGpu units_;
};

}  // namespace aiacc
