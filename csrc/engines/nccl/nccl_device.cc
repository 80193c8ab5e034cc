#include "csrc/engines/nccl/nccl_device.h"

#include <algorithm>
#include <string>
#include <thread>

#include "csrc/base/error.h"
#include "csrc/base/log.h"

namespace aiacc {
namespace {

constexpr std::size_t kLeastBuffer = std::size_t{1} << 20;

}  // namespace

NcclDevice::~NcclDevice() {
  if (device_ == nullptr) {
    return;
  }
  try {
    const Device::Scope scope(*device_);
    for (Lane& lane : lanes_) {
      lane.outgrown.push_back(lane.buffer.memory);
      for (void* memory : lane.outgrown) {
        if (memory != nullptr && nccl_.release(memory) != kNcclSuccess) {
          AIACC_LOG(kWarning) << "[nccl] a buffer could not be given back";
        }
      }
      AIACC_CUDA_LOG(cuda_, stream_destroy, lane.stream);
    }
  } catch (const Error&) {
    // The driver is shutting down, and all this with it.
  }
}

std::shared_ptr<Device> NcclDevice::open(int ordinal) {
  const std::lock_guard lock(mutex_);
  if (device_ == nullptr) {
    const auto device = Device::open(cuda_, ordinal >= 0 ? ordinal : proposed_);
    const Device::Scope scope(*device);
    int lowest = 0;
    int highest = 0;
    AIACC_CUDA_CHECK(cuda_, stream_priority_range, &lowest, &highest);
    for (Lane& lane : lanes_) {
      if (lane.stream == nullptr) {
        AIACC_CUDA_CHECK(cuda_, stream_create, &lane.stream, kCudaStreamNonBlocking, highest);
      }
    }
    device_ = device;
  }
  if (ordinal >= 0 && ordinal != device_->ordinal()) {
    throw Error(Code::kUnsupported,
                "[nccl] a tensor on GPU " + std::to_string(ordinal) + " (expected GPU " +
                    std::to_string(device_->ordinal()) +
                    ", the one that this rank has used before); start one process for each GPU");
  }
  return device_;
}

int NcclDevice::attribute(int number) const {
  CudaDevice device = 0;
  int value = 0;
  AIACC_CUDA_CHECK(cuda_, context_device, &device);
  AIACC_CUDA_CHECK(cuda_, device_attribute, &value, number, device);
  return value;
}

const NcclDevice::Buffer& NcclDevice::buffer(int lane, std::size_t bytes) {
  Lane& here = lanes_[static_cast<std::size_t>(lane) % lanes_.size()];
  if (bytes > here.buffer.capacity) {
    std::size_t capacity = kLeastBuffer;
    while (capacity < bytes) {
      capacity *= 2;
    }
    void* memory = nullptr;
    AIACC_NCCL_CHECK(nccl_, allocate, &memory, capacity);
    if (here.buffer.memory != nullptr) {
      here.outgrown.push_back(here.buffer.memory);
    }
    here.buffer = {memory, capacity};
  }
  return here.buffer;
}

bool NcclDevice::quiesce(Clock::time_point deadline) noexcept {
  try {
    std::shared_ptr<Device> device;
    {
      const std::lock_guard lock(mutex_);
      device = device_;
    }
    if (device == nullptr) {
      return true;
    }
    const Device::Scope scope(*device);
    for (const Lane& lane : lanes_) {
      while (cuda_.stream_query(lane.stream) == kCudaNotReady) {
        if (Clock::now() >= deadline) {
          return false;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200));  // nothing wakes up for that
      }
    }
  } catch (const Error&) {
    // A device without a context runs nothing.
  }
  return true;
}

}  // namespace aiacc
