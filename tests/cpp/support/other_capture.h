#pragma once

#include <memory>
#include <string>

#include "csrc/cuda/device.h"
#include "tests/cpp/support/fakes/fake_cuda.h"

namespace aiacc {

/// A graph that somebody else in the process captures all the while, in the mode "global".
class OtherCapture {
 public:
  explicit OtherCapture(FakeCuda& cuda) : cuda_(cuda), device_(Device::open(cuda.driver(), 0)) {
    const Device::Scope scope(*device_);
    cuda.driver().stream_create(&stream_, kCudaStreamNonBlocking, 0);
    cuda.set_capturing(stream_, true);
  }
  ~OtherCapture() { cuda_.set_capturing(stream_, false); }
  OtherCapture(const OtherCapture&) = delete;
  OtherCapture& operator=(const OtherCapture&) = delete;

  /// The call that has spoilt it, or "".
  std::string spoilt_by() const { return cuda_.spoilt_by(); }

 private:
  FakeCuda& cuda_;
  const std::shared_ptr<Device> device_;
  CudaStream stream_ = nullptr;
};

}  // namespace aiacc
