#include "csrc/cuda/device.h"

#include <string>

namespace aiacc {

RelaxedCapture::RelaxedCapture(const CudaDriver& driver) : driver_(driver) {
  AIACC_CUDA_CHECK(driver_, exchange_capture_mode, &mode_);
}

RelaxedCapture::~RelaxedCapture() { AIACC_CUDA_LOG(driver_, exchange_capture_mode, &mode_); }

std::shared_ptr<Device> Device::open(const CudaDriver& driver, int ordinal) {
  AIACC_CUDA_CHECK(driver, init, 0);
  int count = 0;
  AIACC_CUDA_CHECK(driver, device_count, &count);
  if (ordinal < 0 || ordinal >= count) {
    throw Error(Code::kInvalidArgument,
                "[cuda] device " + std::to_string(ordinal) + " (expected 0.." +
                    std::to_string(count - 1) + ", as CUDA_VISIBLE_DEVICES leaves them)");
  }
  CudaDevice device = 0;
  CudaContext context = nullptr;
  const RelaxedCapture relaxed(driver);
  AIACC_CUDA_CHECK(driver, device_get, &device, ordinal);
  AIACC_CUDA_CHECK(driver, primary_context_retain, &context, device);
  return std::shared_ptr<Device>(new Device(driver, ordinal, device, context));
}

std::shared_ptr<Device> Device::open_or_propose(const CudaDriver& driver,
                                                int ordinal,
                                                int proposed) {
  if (ordinal < 0) {
    int count = 0;
    AIACC_CUDA_CHECK(driver, init, 0);
    AIACC_CUDA_CHECK(driver, device_count, &count);
    ordinal = proposed < count ? proposed : 0;
  }
  return open(driver, ordinal);
}

Device::~Device() {
  try {
    const Scope scope(*this);
    for (const CudaEvent event : spare_) {
      AIACC_CUDA_LOG(driver_, event_destroy, event);
    }
  } catch (const Error&) {
    // The driver is shutting down, and all this with it.
  }
  AIACC_CUDA_LOG(driver_, primary_context_release, device_);
}

Device::Scope::Scope(const Device& device) : driver_(device.driver_), relaxed_(driver_) {
  AIACC_CUDA_CHECK(driver_, context_push, device.context_);
}

Device::Scope::~Scope() {
  CudaContext popped = nullptr;
  AIACC_CUDA_LOG(driver_, context_pop, &popped);
}

Mark Device::record(CudaStream stream) {
  const std::shared_ptr<StreamMark> mark = blank_mark();
  const std::lock_guard lock(mutex_);
  mark->stream = stream;
  mark->number = ++recorded_;
  AIACC_CUDA_CHECK(driver_, event_record, mark->event, stream);
  return mark;
}

std::shared_ptr<StreamMark> Device::blank_mark() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) {
    CudaEvent event = nullptr;
    spare_.reserve(events_ + 1);  // so that it can be given back without memory
    AIACC_CUDA_CHECK(driver_, event_create, &event, kCudaEventDisableTiming);
    ++events_;
    spare_.push_back(event);
  }
  auto mark = std::make_unique<StreamMark>();
  mark->event = spare_.back();
  spare_.pop_back();
  const auto give_back = [device = shared_from_this()](StreamMark* used) {
    const std::lock_guard guard(device->mutex_);
    device->spare_.push_back(used->event);
    delete used;
  };
  return {mark.release(), give_back};
}

void Device::wait(CudaStream stream, const Mark& mark) const {
  AIACC_CUDA_CHECK(driver_, stream_wait_event, stream, mark->event, 0);
}

bool Device::reached(const Mark& mark) const {
  const CudaResult result = driver_.event_query(mark->event);
  if (result == kCudaNotReady) {
    return false;
  }
  check_cuda(driver_, result, "event_query");
  return true;
}

bool Device::capturing(CudaStream stream) const {
  int status = 0;
  AIACC_CUDA_CHECK(driver_, stream_is_capturing, stream, &status);
  return status != 0;
}

}  // namespace aiacc
