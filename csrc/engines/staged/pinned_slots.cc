#include "csrc/engines/staged/pinned_slots.h"

#include "csrc/base/log.h"

namespace aiacc {

PinnedSlots::~PinnedSlots() {
  if (device_ == nullptr) {
    return;
  }
  try {
    const Device::Scope scope(*device_);
    AIACC_CUDA_LOG(device_->driver(), host_unregister, pinned_.data);
  } catch (const Error&) {
    // The driver is shutting down, and all this with it.
  }
}

bool PinnedSlots::usable(const std::shared_ptr<Device>& device, int lane) {
  const SharedSlots slots = engine_.slots(lane);
  if (slots.bytes == 0) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  if (!asked_) {
    asked_ = true;
    try {
      AIACC_CUDA_CHECK(device->driver(), host_register, slots.data, slots.bytes, kCudaHostPortable);
      pinned_ = slots;
      device_ = device;
    } catch (const Error& error) {
      AIACC_LOG(kInfo) << "[gpu] tensors are staged through memory of their own: the memory that "
                          "ranks share cannot be page-locked: "
                       << error.what();
    }
  }
  return device_ != nullptr && pinned_.data == slots.data;
}

}  // namespace aiacc
