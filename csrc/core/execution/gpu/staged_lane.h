#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/core/execution/gpu/staged_unit.h"
#include "csrc/cuda/device_pool.h"
#include "csrc/cuda/stream_signal.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/staged/device_mover.h"

namespace aiacc {

/// Moves the units of one lane whose tensors are on one GPU through pinned memory and the engine
/// for host memory.
///
/// Large all-reduces between ranks of one host go straight through the engine's slots, block by
/// block, and need no other memory (fits_slots). What follows is about the other units.
///
/// There are two streams, one for copies to the host and one back, and two slots of pinned memory.
/// While the engine works on one step, that of the next is copied to the host and that of the one
/// before back to the GPU; the next unit of the lane counts, if it is known by then.
///
/// Threads: one at a time, which waits for copies to the host, since the engine reads them; nobody
/// waits for copies to the GPU. Needs a Device::Scope, but for `quiesce`, which is any thread's.
class StagedLane {
 public:
  /// Makes streams, which may wait for the GPU. `pool` is one of the device. `cancellation`, which
  /// outlives this, ends the waits.
  StagedLane(int lane,
             std::shared_ptr<Device> device,
             std::shared_ptr<DevicePool> pool,
             const Cancellation& cancellation);
  /// When the lane is not running and the streams are empty, or the device has failed.
  ~StagedLane();
  StagedLane(const StagedLane&) = delete;
  StagedLane& operator=(const StagedLane&) = delete;

  /// Starts to copy the first step of a unit to the host, if there is a slot for it. Called for the
  /// units of the lane in their order, before `run` is called for the one before it.
  void prepare(const Unit& unit);

  /// Moves the unit; its results are on the GPU at the mark that is returned. Blocks; throws what
  /// the engine and CUDA throw, and the status of the cancellation.
  Mark run(const Unit& unit, PackBuffer& buffer);

  /// Waits until all copies back are done, or the device has failed, or the deadline; true unless
  /// the deadline came. For the end.
  bool quiesce(Clock::time_point deadline) const noexcept;

 private:
  struct Slot {
    std::byte* memory = nullptr;
    std::size_t capacity = 0;
    StreamSignal filled;
    Mark drained;       ///< where the last copy back has left it; null: there was none
    bool held = false;  ///< filled, or being filled, and not worked on yet
    // The unit that `prepare` has begun with.
    std::size_t prepared_steps = 0;  ///< of that unit; 0: there is none
    std::uint32_t communicator = 0;
    std::uint64_t seq = 0;
  };

  Slot* free_slot();
  Slot* take_prepared(const Unit& unit);
  void fill(Slot& slot, const StagedStep& step);
  void drain(Slot& slot, const std::vector<StagedCopy>& copies);
  void grow(Slot& slot, std::size_t bytes);
  bool moves(const Unit& unit) const;
  Mark move(const Unit& unit);
  void await(StreamSignal& signal) const;

  const int lane_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<DevicePool> pool_;
  const CudaDriver& driver_;
  const Cancellation& cancellation_;
  CudaStream in_ = nullptr;
  CudaStream out_ = nullptr;
  std::array<Slot, 2> slots_;
  std::optional<DeviceMover> mover_;  ///< for the units that go through the engine's slots
};

}  // namespace aiacc
