#pragma once

#include "csrc/cuda/driver.h"
#include "csrc/kernels/device_image.h"

namespace aiacc {

/// A function of a module, and as many blocks as the whole device runs of it at a time.
struct DeviceKernel {
  CudaFunction function = nullptr;
  unsigned resident = 1;
};

/// A device image, loaded for one device.
///
/// Threads: any. The context of the device is current in whatever thread constructs it, calls it
/// or destroys it. The driver's table outlives it.
class DeviceModule {
 public:
  /// Blocks, may wait for the GPU. Throws Error(kUnsupported) if the image is empty,
  /// Error(kEngine) if it does not suit the device or the driver.
  DeviceModule(const CudaDriver& driver, const DeviceImage& image);
  ~DeviceModule();
  DeviceModule(const DeviceModule&) = delete;
  DeviceModule& operator=(const DeviceModule&) = delete;

  const CudaDriver& driver() const { return driver_; }

  /// The kernel of that name, whose blocks have so many threads. Loads it: no launch has to.
  /// Throws Error(kEngine) if there is none.
  DeviceKernel find(const char* name, unsigned threads) const;

  /// Queues `blocks` blocks; the argument is copied before this returns. Throws Error(kEngine).
  template <class Argument>
  void launch(const DeviceKernel& kernel,
              CudaStream stream,
              unsigned blocks,
              unsigned threads,
              Argument& argument) const {
    void* arguments[] = {&argument};
    launch_with(kernel, stream, blocks, threads, static_cast<void**>(arguments));
  }
  /// The same with blocks that wait for one another, no more than `kernel.resident`.
  template <class Argument>
  void launch_together(const DeviceKernel& kernel,
                       CudaStream stream,
                       unsigned blocks,
                       unsigned threads,
                       Argument& argument) const {
    void* arguments[] = {&argument};
    AIACC_CUDA_CHECK(driver_,
                     launch_cooperative,
                     kernel.function,
                     blocks,
                     1,
                     1,
                     threads,
                     1,
                     1,
                     0,
                     stream,
                     static_cast<void**>(arguments));
  }

 private:
  void launch_with(const DeviceKernel& kernel,
                   CudaStream stream,
                   unsigned blocks,
                   unsigned threads,
                   void** arguments) const;

  const CudaDriver& driver_;
  CudaModule module_ = nullptr;
  int multiprocessors_ = 0;
};

}  // namespace aiacc
