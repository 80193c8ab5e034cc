#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/spin.h"
#include "csrc/cuda/device.h"
#include "csrc/cuda/stream_signal.h"
#include "csrc/engines/block_mover.h"
#include "csrc/engines/cancellation.h"

namespace aiacc {

/// A piece of memory on the GPU and its place in host memory, or in the buffer of an all-reduce.
struct StagedCopy {
  std::uintptr_t device = 0;
  std::size_t host_offset = 0;
  std::size_t bytes = 0;
};

/// Copies between pieces of memory on a GPU and page-locked slots, on two streams of its own, one
/// for each direction.
///
/// Nothing on these streams depends on anybody once `await_inputs` has returned: so whoever waits
/// for a copy waits for the copy engine alone, and a device that fails ends the wait.
///
/// Threads: one at a time. Needs a Device::Scope, its end too.
class DeviceMover : public BlockMover {
 public:
  explicit DeviceMover(std::shared_ptr<Device> device);
  /// No copy may be running.
  ~DeviceMover() override;
  DeviceMover(const DeviceMover&) = delete;
  DeviceMover& operator=(const DeviceMover&) = delete;

  /// Where copies to the host run: what writes their source is to be waited for there.
  CudaStream in() const { return in_; }
  /// Blocks until `in()` has come to its present end; throws the status of the cancellation.
  void await_inputs(const Cancellation& cancellation);

  /// A buffer of elements of `dtype`. Pieces have ascending places, and do not overlap. What no
  /// piece of `from` covers is zeros, what none of `to` covers goes nowhere. Input is multiplied by
  /// `prescale`.
  void begin(std::vector<StagedCopy> from,
             std::vector<StagedCopy> to,
             DataType dtype,
             double prescale);
  /// Where the GPU has all results.
  Mark end() { return device_->record(out_); }

  void start_in(int ticket, std::size_t offset, std::size_t bytes, std::byte* to) override;
  void finish_in(int ticket) override;
  void start_out(int ticket, std::size_t offset, std::size_t bytes, const std::byte* from) override;
  void finish_out(int ticket) override;
  void stop() noexcept override;

 private:
  /// What was started with a ticket.
  struct Started {
    Mark mark;  ///< null: nothing
    std::byte* at = nullptr;
    std::size_t bytes = 0;
  };

  void await(const Mark& mark);
  void await_end(CudaStream stream, StreamSignal& signal) noexcept;

  const std::shared_ptr<Device> device_;
  const CudaDriver& driver_;
  CudaStream in_ = nullptr;
  CudaStream out_ = nullptr;
  CudaStream waits_ = nullptr;  ///< for marks: what it waits for holds no copy up
  StreamSignal reached_;
  StreamSignal idle_in_;
  StreamSignal idle_out_;
  Spin spin_;

  std::vector<StagedCopy> from_;
  std::vector<StagedCopy> to_;
  DataType dtype_ = DataType::kUInt8;
  double prescale_ = 1;
  std::array<Started, kTickets> in_started_;
  std::array<Started, kTickets> out_started_;
};

}  // namespace aiacc
