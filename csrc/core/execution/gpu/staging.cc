#include "csrc/core/execution/gpu/staging.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/core/execution/gpu/wait_for_inputs.h"

namespace aiacc {
namespace {

constexpr std::size_t kLeastSlot = std::size_t{1} << 20;

}  // namespace

Staging::Staging(std::shared_ptr<Device> device, int lanes, const Cancellation& cancellation)
    : device_(std::move(device)),
      pool_(DevicePool::make(device_)),
      driver_(device_->driver()),
      cancellation_(cancellation) {
  int lowest = 0;
  int highest = 0;
  AIACC_CUDA_CHECK(driver_, stream_priority_range, &lowest, &highest);
  for (int i = 0; i < lanes; ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    for (CudaStream* stream : {&lanes_.back()->in, &lanes_.back()->out}) {
      AIACC_CUDA_CHECK(driver_, stream_create, stream, kCudaStreamNonBlocking, highest);
    }
  }
}

Staging::~Staging() {
  for (const auto& lane : lanes_) {
    for (Slot& slot : lane->slots) {
      slot.drained.reset();
      if (slot.memory != nullptr) {
        AIACC_CUDA_LOG(driver_, host_release, slot.memory);
      }
    }
    for (CudaStream stream : {lane->in, lane->out}) {
      AIACC_CUDA_LOG(driver_, stream_destroy, stream);
    }
  }
}

Staging::Slot* Staging::free_slot(Lane& lane) {
  const auto found = std::find_if(
      lane.slots.begin(), lane.slots.end(), [](const Slot& slot) { return !slot.held; });
  return found == lane.slots.end() ? nullptr : &*found;
}

/// The slot in which `prepare` has begun with the unit, or null.
Staging::Slot* Staging::take_prepared(Lane& lane, const Unit& unit) {
  const auto found =
      std::find_if(lane.prepared.begin(), lane.prepared.end(), [&](const Prepared& prepared) {
        return prepared.communicator == unit.communicator->id && prepared.seq == unit.plan.seq;
      });
  if (found == lane.prepared.end()) {
    return nullptr;
  }
  Slot* slot = found->slot;
  lane.prepared.erase(found);
  return slot;
}

void Staging::prepare(const Unit& unit, int lane) {
  Lane& here = lane_at(lane);
  // A unit of several steps before it makes better use of both slots.
  const bool several = std::any_of(here.prepared.begin(),
                                   here.prepared.end(),
                                   [](const Prepared& prepared) { return prepared.steps > 1; });
  Slot* slot = free_slot(here);
  if (several || slot == nullptr) {
    return;
  }
  const StagedUnit work(unit);
  if (moves(unit, work, lane)) {
    return;
  }
  wait_for_inputs(unit, here.in, *device_);
  fill(here, *slot, work, 0);
  here.prepared.push_back({unit.communicator->id, unit.plan.seq, work.steps(), slot});
}

Mark Staging::run(const Unit& unit, int lane, PackBuffer& buffer) {
  Lane& here = lane_at(lane);
  const StagedUnit work(unit);
  std::uintptr_t gathered = 0;
  if (work.gathered_bytes() > 0) {
    TensorBuffers& buffers = unit.pieces.front().buffers();
    buffers.gathered_on_gpu = pool_->take(work.gathered_bytes(), here.out);
    gathered = static_cast<std::uintptr_t>(buffers.gathered_on_gpu->address);
  }
  Slot* slot = take_prepared(here, unit);
  if (slot == nullptr && moves(unit, work, lane)) {
    return move(here, unit, work, lane);
  }
  if (slot == nullptr) {
    slot = free_slot(here);
    AIACC_CHECK(slot != nullptr);
    wait_for_inputs(unit, here.in, *device_);
    fill(here, *slot, work, 0);
  }
  for (std::size_t step = 0; step < work.steps(); ++step) {
    const bool more = step + 1 < work.steps();
    Slot* following = more ? free_slot(here) : nullptr;
    if (following != nullptr) {
      fill(here, *following, work, step + 1);
    }
    await(slot->filled);
    work.run(step, lane, slot->memory, buffer);
    drain(here, *slot, work.copies_out(step, gathered));
    if (more && following == nullptr) {
      following = slot;
      fill(here, *following, work, step + 1);
    }
    slot = following;
  }
  return device_->record(here.out);
}

/// Whether the unit goes straight through the engine's slots.
bool Staging::moves(const Unit& unit, const StagedUnit& work, int lane) {
  PinnedSlots* slots = unit.communicator->slots.get();
  return work.fits_slots() && slots != nullptr && slots->usable(device_, lane);
}

/// On other streams than units that `prepare` begins with: their inputs may come later than this
/// unit's.
Mark Staging::move(Lane& here, const Unit& unit, const StagedUnit& work, int lane) {
  if (here.mover == nullptr) {
    here.mover = std::make_unique<DeviceMover>(device_);
  }
  DeviceMover& mover = *here.mover;
  wait_for_inputs(unit, mover.in(), *device_);
  mover.await_inputs(cancellation_);
  work.run_moved(lane, mover);
  return mover.end();
}

void Staging::fill(Lane& lane, Slot& slot, const StagedUnit& work, std::size_t step) {
  if (const std::size_t bytes = work.host_bytes(step); bytes > slot.capacity) {
    grow(lane, slot, bytes);
  }
  if (slot.drained != nullptr) {
    device_->wait(lane.in, slot.drained);
  }
  for (const StagedUnit::Copy& copy : work.copies_in(step)) {
    AIACC_CUDA_CHECK(driver_,
                     copy_async,
                     reinterpret_cast<CudaAddress>(slot.memory + copy.host_offset),
                     static_cast<CudaAddress>(copy.device),
                     copy.bytes,
                     lane.in);
  }
  slot.held = true;
  slot.filled.arm(driver_, lane.in);
}

/// Starts the copies back and gives the slot free.
void Staging::drain(Lane& lane, Slot& slot, const std::vector<StagedUnit::Copy>& copies) {
  for (const StagedUnit::Copy& copy : copies) {
    AIACC_CUDA_CHECK(driver_,
                     copy_async,
                     static_cast<CudaAddress>(copy.device),
                     reinterpret_cast<CudaAddress>(slot.memory + copy.host_offset),
                     copy.bytes,
                     lane.out);
  }
  slot.drained = device_->record(lane.out);
  slot.held = false;
}

void Staging::grow(Lane& lane, Slot& slot, std::size_t bytes) {
  if (slot.memory != nullptr) {
    StreamSignal idle;
    idle.arm(driver_, lane.out);
    await(idle);
    AIACC_CUDA_CHECK(driver_, host_release, slot.memory);
    slot.memory = nullptr;
    slot.capacity = 0;
  }
  std::size_t capacity = kLeastSlot;
  while (capacity < bytes) {
    capacity *= 2;
  }
  void* memory = nullptr;
  AIACC_CUDA_CHECK(driver_, host_allocate, &memory, capacity, kCudaHostPortable);
  slot.memory = static_cast<std::byte*>(memory);
  slot.capacity = capacity;
}

void Staging::await(StreamSignal& signal) const {
  signal.wait(cancellation_.fd(), [this] { cancellation_.check(); });
}

bool Staging::quiesce(Clock::time_point deadline) noexcept {
  bool late = false;
  const auto look = [&] {
    late = Clock::now() >= deadline;
    if (late) {
      throw Error(Code::kTimeout, "[gpu] copies to the GPU are not done");
    }
  };
  try {
    for (const auto& lane : lanes_) {
      for (CudaStream stream : {lane->in, lane->out}) {
        StreamSignal idle;
        idle.arm(driver_, stream);
        idle.wait(-1, look);
      }
    }
  } catch (const std::exception&) {
    // Unless it is late, the device has failed, or its driver has ended: nothing is running there.
  }
  return !late;
}

}  // namespace aiacc
