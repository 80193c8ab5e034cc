#include "csrc/engines/nccl/nccl_device.h"

#include <functional>
#include <thread>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"

namespace aiacc {
namespace {

constexpr std::size_t kLeastBuffer = std::size_t{1} << 20;

}  // namespace

NcclDevice::NcclDevice(std::shared_ptr<Device> device, const NcclApi& nccl, int lanes)
    : device_(std::move(device)), nccl_(nccl), lanes_(static_cast<std::size_t>(lanes)) {
  const CudaDriver& driver = device_->driver();
  int lowest = 0;
  int highest = 0;
  AIACC_CUDA_CHECK(driver, stream_priority_range, &lowest, &highest);
  for (Lane& lane : lanes_) {
    for (CudaStream* stream : {&lane.stream, &lane.pack_stream}) {
      AIACC_CUDA_CHECK(driver, stream_create, stream, kCudaStreamNonBlocking, highest);
    }
  }
}

NcclDevice::~NcclDevice() {
  try {
    const Device::Scope scope(*device_);
    for (Lane& lane : lanes_) {
      for (const Buffer& buffer : lane.ring) {
        lane.outgrown.push_back(buffer.memory);
      }
      for (void* memory : lane.outgrown) {
        if (memory != nullptr && nccl_.release(memory) != kNcclSuccess) {
          AIACC_LOG(kWarning) << "[nccl] a buffer could not be given back";
        }
      }
      for (const CudaStream stream : {lane.stream, lane.pack_stream}) {
        AIACC_CUDA_LOG(device_->driver(), stream_destroy, stream);
      }
    }
  } catch (const Error&) {
    // The driver is shutting down, and all this with it.
  }
}

const NcclDevice::Buffer& NcclDevice::buffer(int lane, std::size_t bytes) {
  Lane& here = lanes_[static_cast<std::size_t>(lane) % lanes_.size()];
  Buffer& buffer = here.ring[here.next];
  here.next = (here.next + 1) % kRing;
  if (bytes > buffer.capacity) {
    std::size_t capacity = kLeastBuffer;
    while (capacity < bytes) {
      capacity *= 2;
    }
    void* memory = nullptr;
    AIACC_NCCL_CHECK(nccl_, allocate, &memory, capacity);
    if (buffer.memory != nullptr) {
      here.outgrown.push_back(buffer.memory);
    }
    buffer = {memory, capacity};
  }
  return buffer;
}

const NcclDevice::Buffer* NcclDevice::find(int lane, const void* memory) const {
  for (const Buffer& buffer : lane_at(lane).ring) {
    const auto* begin = static_cast<const std::byte*>(buffer.memory);
    if (std::less_equal<>()(begin, memory) &&
        std::less<>()(memory, static_cast<const void*>(begin + buffer.capacity))) {
      return &buffer;
    }
  }
  return nullptr;
}

bool NcclDevice::quiesce(Clock::time_point deadline) const {
  const Device::Scope scope(*device_);
  for (const Lane& lane : lanes_) {
    for (const CudaStream stream : {lane.pack_stream, lane.stream}) {
      while (device_->driver().stream_query(stream) == kCudaNotReady) {
        if (Clock::now() >= deadline) {
          return false;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200));  // nothing wakes up for that
      }
    }
  }
  return true;
}

std::shared_ptr<NcclDevice> NcclDevices::on(int ordinal) {
  const std::lock_guard lock(mutex_);
  auto known = devices_.find(ordinal < 0 ? first_ : ordinal);
  if (known == devices_.end()) {
    const auto device = Device::open_or_propose(cuda_, ordinal, proposed_);
    const Device::Scope scope(*device);
    first_ = devices_.empty() ? device->ordinal() : first_;
    known = devices_.emplace(device->ordinal(), std::make_shared<NcclDevice>(device, nccl_, lanes_))
                .first;
  }
  return known->second;
}

int NcclDevices::attribute(int number) const {
  CudaDevice device = 0;
  int value = 0;
  AIACC_CUDA_CHECK(cuda_, context_device, &device);
  AIACC_CUDA_CHECK(cuda_, device_attribute, &value, number, device);
  return value;
}

bool NcclDevices::quiesce(Clock::time_point deadline) noexcept {
  std::map<int, std::shared_ptr<NcclDevice>> devices;
  {
    const std::lock_guard lock(mutex_);
    devices = devices_;
  }
  bool quiet = true;
  for (const auto& [ordinal, device] : devices) {
    try {
      quiet = device->quiesce(deadline) && quiet;
    } catch (const Error&) {
      // A device without a context runs nothing.
    }
  }
  return quiet;
}

}  // namespace aiacc
