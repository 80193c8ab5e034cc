#include "csrc/engines/staged/host_staging_lane.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/base/thread.h"

namespace aiacc {
namespace {

constexpr std::size_t kLeastMemory = std::size_t{1} << 20;

/// How long the last copies back may take.
constexpr std::chrono::seconds kPatience{4};

CudaAddress address_of(const void* memory) { return reinterpret_cast<CudaAddress>(memory); }

}  // namespace

HostStagingLane::HostStagingLane(const std::string& name)
    : thread_(start_thread(name, [this] { work(); })) {}

HostStagingLane::~HostStagingLane() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  jobs_.clear();
  for (auto& [ordinal, way] : ways_) {
    try {
      const Device::Scope scope(*way.device);
      const auto limit = Clock::now() + kPatience;
      for (const CudaStream stream : {way.in, way.out}) {
        while (way.device->driver().stream_query(stream) == kCudaNotReady && Clock::now() < limit) {
          std::this_thread::sleep_for(std::chrono::microseconds(200));  // nothing wakes up for that
        }
        AIACC_CUDA_LOG(way.device->driver(), stream_destroy, stream);
      }
    } catch (const Error&) {
      // The driver is shutting down, and all this with it.
    }
  }
  for (const auto& [device, memory] : memory_) {
    try {
      const Device::Scope scope(*device);
      AIACC_CUDA_LOG(device->driver(), host_release, memory);
    } catch (const Error&) {
      // The same.
    }
  }
}

HostStagingLane::Way& HostStagingLane::way_to(const std::shared_ptr<Device>& device) {
  Way& way = ways_[device->ordinal()];
  if (way.device != nullptr) {
    return way;
  }
  const CudaDriver& driver = device->driver();
  int lowest = 0;
  int highest = 0;
  AIACC_CUDA_CHECK(driver, stream_priority_range, &lowest, &highest);
  for (CudaStream* stream : {&way.in, &way.out}) {
    AIACC_CUDA_CHECK(driver, stream_create, stream, kCudaStreamNonBlocking, highest);
  }
  if (done_ == nullptr) {
    void* memory = nullptr;
    AIACC_CUDA_CHECK(driver, host_allocate, &memory, sizeof *done_, kCudaHostPortable);
    memory_.emplace_back(device, memory);
    done_ = static_cast<std::uint32_t*>(memory);
    __atomic_store_n(done_, 0U, __ATOMIC_RELEASE);
  }
  way.device = device;
  return way;
}

/// Outgrown memory stays until the end: parts may be on their way through it.
HostStagingLane::Slot& HostStagingLane::next_slot(Way& way, std::size_t bytes) {
  Slot& slot = way.slots[way.next];
  way.next = (way.next + 1) % way.slots.size();
  if (bytes > slot.capacity) {
    std::size_t capacity = kLeastMemory;
    while (capacity < bytes) {
      capacity *= 2;
    }
    void* memory = nullptr;
    AIACC_CUDA_CHECK(way.device->driver(), host_allocate, &memory, capacity, kCudaHostPortable);
    memory_.emplace_back(way.device, memory);
    slot = {static_cast<std::byte*>(memory), capacity, nullptr};
  }
  return slot;
}

std::unique_ptr<StreamSignal> HostStagingLane::signal() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) {
    return std::make_unique<StreamSignal>();
  }
  auto signal = std::move(spare_.back());
  spare_.pop_back();
  return signal;
}

Mark HostStagingLane::pass(const std::shared_ptr<HostWork>& work,
                           const std::shared_ptr<Device>& device,
                           HostPart part,
                           const Mark& ready) {
  const CudaDriver& driver = device->driver();
  Way& way = way_to(device);
  Slot& slot = next_slot(way, std::max(part.sent, part.received_at + part.received));
  device->wait(way.in, ready);
  if (slot.drained != nullptr) {
    device->wait(way.in, slot.drained);
  }
  if (part.sent > 0) {
    AIACC_CUDA_CHECK(
        driver, copy_async, address_of(slot.memory), address_of(part.send), part.sent, way.in);
  }
  Job job{work, device, signal(), std::move(part.run), slot.memory, ++issued_};
  const std::uint32_t number = job.number;
  const Mark filled = device->record(way.in);
  job.filled->arm(driver, way.in);
  {
    const std::lock_guard lock(work->mutex);
    ++work->parts;
  }
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
  // The number alone would do; the mark tells the driver's scheduler what it cannot see.
  device->wait(way.out, filled);
  AIACC_CUDA_CHECK(
      driver, stream_wait_value, way.out, address_of(done_), number, kCudaWaitValueAtLeast);
  if (part.received > 0) {
    AIACC_CUDA_CHECK(driver,
                     copy_async,
                     address_of(part.recv),
                     address_of(slot.memory + part.received_at),
                     part.received,
                     way.out);
  }
  slot.drained = device->record(way.out);
  return slot.drained;
}

void HostStagingLane::work() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // engines sleep for tens of microseconds between tests
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    do_job(job);
    __atomic_store_n(done_, job.number, __ATOMIC_RELEASE);
    {
      const std::lock_guard guard(job.work->mutex);
      --job.work->parts;
      job.work->changed.notify_all();
    }
    lock.lock();
    if (job.filled != nullptr) {
      spare_.push_back(std::move(job.filled));
    }
  }
}

/// Returns when the copy back may begin: when the part is there, or nobody wants it any more.
void HostStagingLane::do_job(Job& job) {
  HostWork& work = *job.work;
  try {
    const Device::Scope scope(*job.device);
    std::unique_ptr<StreamSignal> filled = std::move(job.filled);
    filled->wait(work.cancellation.fd(), [&] { work.cancellation.check(); });
    job.filled = std::move(filled);  // to be used again
    job.run(job.memory);
  } catch (...) {
    const Status status = current_exception_status();
    work.cancellation.set(status);
    work.stop(status);
    std::unique_lock lock(work.mutex);
    work.changed.wait(lock, [&] { return work.aborted; });
  }
}

}  // namespace aiacc
