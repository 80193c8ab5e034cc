#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/core/execution/gpu/staged_unit.h"
#include "csrc/cuda/device_pool.h"
#include "csrc/cuda/stream_signal.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/staged/device_mover.h"

namespace aiacc {

/// Moves units of tensors on a GPU through pinned memory and the engine for host memory.
///
/// Large all-reduces between ranks of one host go straight through the engine's slots, block by
/// block, and need no other memory (StagedUnit::fits_slots). What follows is about the other units.
///
/// Every lane has two streams, one for copies to the host and one back, and two slots of pinned
/// memory. While the engine works on one step, that of the next is copied to the host and that of
/// the one before back to the GPU; the next unit of the lane counts, if it is known by then.
///
/// Threads: a lane is used by one thread at a time. That thread waits for copies to the host, since
/// the engine reads them; nobody waits for copies to the GPU. Needs a Device::Scope.
class Staging {
 public:
  /// Makes streams, which may wait for the GPU. `cancellation`, which outlives this, ends the waits
  /// of all lanes.
  Staging(std::shared_ptr<Device> device, int lanes, const Cancellation& cancellation);
  /// When no lane is running and the streams are empty, or the device has failed.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Starts to copy the first step of a unit to the host, if there is a slot for it. Called for the
  /// units of a lane in their order, before `run` is called for the one before it.
  void prepare(const Unit& unit, int lane);

  /// Moves the unit; its results are on the GPU at the mark that is returned. Blocks; throws what
  /// the engine and CUDA throw, and the status of the cancellation.
  Mark run(const Unit& unit, int lane, PackBuffer& buffer);

  /// Waits until all copies back are done, or the device has failed, or the deadline; true unless
  /// the deadline came. For the end.
  bool quiesce(Clock::time_point deadline) noexcept;

 private:
  struct Slot {
    std::byte* memory = nullptr;
    std::size_t capacity = 0;
    StreamSignal filled;
    Mark drained;       ///< where the last copy back has left it; null: there was none
    bool held = false;  ///< filled, or being filled, and not worked on yet
  };
  /// The first step of a unit that is on its way to the host.
  struct Prepared {
    std::uint32_t communicator = 0;
    std::uint64_t seq = 0;
    std::size_t steps = 0;
    Slot* slot = nullptr;
  };
  struct Lane {
    CudaStream in = nullptr;
    CudaStream out = nullptr;
    std::array<Slot, 2> slots;
    std::vector<Prepared> prepared;
    std::unique_ptr<DeviceMover> mover;  ///< null before its first unit
  };

  static Slot* free_slot(Lane& lane);
  static Slot* take_prepared(Lane& lane, const Unit& unit);
  bool moves(const Unit& unit, const StagedUnit& work, int lane);
  Mark move(Lane& here, const Unit& unit, const StagedUnit& work, int lane);
  void fill(Lane& lane, Slot& slot, const StagedUnit& work, std::size_t step);
  void grow(Lane& lane, Slot& slot, std::size_t bytes);
  void drain(Lane& lane, Slot& slot, const std::vector<StagedUnit::Copy>& copies);
  void await(StreamSignal& signal) const;
  Lane& lane_at(int lane) { return *lanes_[static_cast<std::size_t>(lane)]; }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<DevicePool> pool_;
  const CudaDriver& driver_;
  const Cancellation& cancellation_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace aiacc
