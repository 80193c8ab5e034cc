#include "csrc/core/execution/gpu/staged_lane.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr std::size_t kLeastSlot = std::size_t{1} << 20;

CudaAddress address_of(const std::byte* memory) { return reinterpret_cast<CudaAddress>(memory); }

}  // namespace

StagedLane::StagedLane(int lane,
                       std::shared_ptr<Device> device,
                       std::shared_ptr<DevicePool> pool,
                       const Cancellation& cancellation)
    : lane_(lane),
      device_(std::move(device)),
      pool_(std::move(pool)),
      driver_(device_->driver()),
      cancellation_(cancellation) {
  int lowest = 0;
  int highest = 0;
  AIACC_CUDA_CHECK(driver_, stream_priority_range, &lowest, &highest);
  for (CudaStream* stream : {&in_, &out_}) {
    AIACC_CUDA_CHECK(driver_, stream_create, stream, kCudaStreamNonBlocking, highest);
  }
}

StagedLane::~StagedLane() {
  for (Slot& slot : slots_) {
    slot.drained.reset();
    if (slot.memory != nullptr) {
      AIACC_CUDA_LOG(driver_, host_release, slot.memory);
    }
  }
  for (CudaStream stream : {in_, out_}) {
    AIACC_CUDA_LOG(driver_, stream_destroy, stream);
  }
}

StagedLane::Slot* StagedLane::free_slot() {
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.held; });
  return found == slots_.end() ? nullptr : &*found;
}

/// The slot in which `prepare` has begun with the unit, or null.
StagedLane::Slot* StagedLane::take_prepared(const Unit& unit) {
  for (Slot& slot : slots_) {
    if (slot.prepared_steps > 0 && slot.communicator == unit.communicator->id &&
        slot.seq == unit.plan.seq) {
      slot.prepared_steps = 0;
      return &slot;
    }
  }
  return nullptr;
}

void StagedLane::prepare(const Unit& unit) {
  Slot* slot = free_slot();
  // A unit of several steps before it makes better use of both slots.
  if (slot == nullptr || slots_[0].prepared_steps > 1 || slots_[1].prepared_steps > 1) {
    return;
  }
  if (!moves(unit)) {
    wait_for_inputs(unit, in_, *device_);
    fill(*slot, staged_step(unit, 0));
    slot->prepared_steps = staged_steps(unit);
    slot->communicator = unit.communicator->id;
    slot->seq = unit.plan.seq;
  }
}

Mark StagedLane::run(const Unit& unit, PackBuffer& buffer) {
  if (const std::size_t bytes = gathered_bytes(unit); bytes > 0) {
    unit.pieces.front().buffers().gathered_on_gpu = pool_->take(bytes, out_);
  }
  Slot* slot = take_prepared(unit);
  if (slot == nullptr && moves(unit)) {
    return move(unit);
  }
  StagedStep step = staged_step(unit, 0);
  if (slot == nullptr) {
    slot = free_slot();
    AIACC_CHECK(slot != nullptr);
    wait_for_inputs(unit, in_, *device_);
    fill(*slot, step);
  }
  const std::size_t steps = staged_steps(unit);
  for (std::size_t i = 1; i <= steps; ++i) {
    const bool more = i < steps;
    StagedStep next = more ? staged_step(unit, i) : StagedStep();
    Slot* following = more ? free_slot() : nullptr;
    if (following != nullptr) {
      fill(*following, next);
    }
    await(slot->filled);
    run_step(unit, step, lane_, slot->memory, buffer);
    drain(*slot, step.out);
    if (more && following == nullptr) {
      following = slot;
      fill(*following, next);
    }
    slot = following;
    step = std::move(next);
  }
  return device_->record(out_);
}

/// Whether the unit goes straight through the engine's slots.
bool StagedLane::moves(const Unit& unit) const {
  PinnedSlots* slots = unit.communicator->slots.get();
  return fits_slots(unit) && slots != nullptr && slots->usable(device_, lane_);
}

/// On other streams than units that `prepare` begins with: their inputs may come later than this
/// unit's.
Mark StagedLane::move(const Unit& unit) {
  if (!mover_) {
    mover_.emplace(device_);
  }
  wait_for_inputs(unit, mover_->in(), *device_);
  mover_->await_inputs(cancellation_);
  StagedStep whole = staged_step(unit, 0);
  const Reduction reduction = reduction_of(unit);
  mover_->begin(
      std::move(whole.in), std::move(whole.out), reduction.dtype, unit.request().prescale);
  unit.communicator->engine->all_reduce_moved(lane_, unit.elements(), reduction, *mover_);
  return mover_->end();
}

/// Starts the copies to the host.
void StagedLane::fill(Slot& slot, const StagedStep& step) {
  if (step.bytes > slot.capacity) {
    grow(slot, step.bytes);
  }
  if (slot.drained != nullptr) {
    device_->wait(in_, slot.drained);
  }
  for (const StagedCopy& copy : step.in) {
    const CudaAddress host = address_of(slot.memory + copy.host_offset);
    AIACC_CUDA_CHECK(driver_, copy_async, host, CudaAddress{copy.device}, copy.bytes, in_);
  }
  slot.held = true;
  slot.filled.arm(driver_, in_);
}

/// Starts the copies back and gives the slot free.
void StagedLane::drain(Slot& slot, const std::vector<StagedCopy>& copies) {
  for (const StagedCopy& copy : copies) {
    const CudaAddress host = address_of(slot.memory + copy.host_offset);
    AIACC_CUDA_CHECK(driver_, copy_async, CudaAddress{copy.device}, host, copy.bytes, out_);
  }
  slot.drained = device_->record(out_);
  slot.held = false;
}

void StagedLane::grow(Slot& slot, std::size_t bytes) {
  if (slot.memory != nullptr) {
    StreamSignal idle;
    idle.arm(driver_, out_);
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

void StagedLane::await(StreamSignal& signal) const {
  signal.wait(cancellation_.fd(), [this] { cancellation_.check(); });
}

bool StagedLane::quiesce(Clock::time_point deadline) const noexcept {
  bool late = false;
  const auto look = [&] {
    late = Clock::now() >= deadline;
    if (late) {
      throw Error(Code::kTimeout, "[gpu] copies to the GPU are not done");
    }
  };
  try {
    const Device::Scope scope(*device_);
    for (CudaStream stream : {in_, out_}) {
      StreamSignal idle;
      idle.arm(driver_, stream);
      idle.wait(-1, look);
    }
  } catch (const std::exception&) {
    // Unless it is late, the device has failed, or its driver has ended: nothing is running there.
  }
  return !late;
}

}  // namespace aiacc
