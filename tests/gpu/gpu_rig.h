#pragma once

#include <cstddef>
#include <memory>
#include <thread>

#include "csrc/cuda/device.h"

namespace aiacc {

/// GPU 0 with a stream, for programs and tests that check or measure kernels; the driver may be a
/// fake. Throws Error where there is none. Threads: one.
class GpuRig {
 public:
  explicit GpuRig(const CudaDriver& driver = process_cuda_driver())
      : device_(Device::open(driver, 0)), scope_(*device_) {
    AIACC_CUDA_CHECK(driver, stream_create, &stream_, kCudaStreamNonBlocking, 0);
  }
  ~GpuRig() { AIACC_CUDA_LOG(driver(), stream_destroy, stream_); }
  GpuRig(const GpuRig&) = delete;
  GpuRig& operator=(const GpuRig&) = delete;

  const CudaDriver& driver() const { return device_->driver(); }
  CudaStream stream() const { return stream_; }

  /// Spins until the stream is empty: precise, and good enough for a program with nothing else to
  /// do. It yields to the threads of a GPU in software.
  void finish() const {
    const Mark end = device_->record(stream_);
    while (!device_->reached(end)) {
      std::this_thread::yield();
    }
  }

 private:
  const std::shared_ptr<Device> device_;
  const Device::Scope scope_;
  CudaStream stream_ = nullptr;
};

/// Memory of that GPU.
class DeviceMemory {
 public:
  DeviceMemory(GpuRig& rig, std::size_t bytes) : rig_(rig), bytes_(bytes) {
    AIACC_CUDA_CHECK(rig_.driver(), allocate, &address_, bytes_ + 1);  // not even then nothing
  }
  ~DeviceMemory() {
    rig_.finish();
    AIACC_CUDA_LOG(rig_.driver(), release, address_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* pointer() const {
    return reinterpret_cast<void*>(address_);  // NOLINT(performance-no-int-to-ptr)
  }
  void write(const void* from) { copy(address_, reinterpret_cast<CudaAddress>(from)); }
  /// After what is queued.
  void read(void* to) { copy(reinterpret_cast<CudaAddress>(to), address_); }

 private:
  void copy(CudaAddress to, CudaAddress from) {
    AIACC_CUDA_CHECK(rig_.driver(), copy_async, to, from, bytes_, rig_.stream());
    rig_.finish();
  }

  GpuRig& rig_;
  const std::size_t bytes_;
  CudaAddress address_ = 0;
};

}  // namespace aiacc
