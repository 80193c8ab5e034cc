#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/cpp/support/coordinators.h"
#include "tests/cpp/support/nccl_world.h"

namespace aiacc {

/// What a front-end does on one rank: a stream of its own, and tensors on the GPU of that number.
/// The device's memory is the host's in these tests.
class GpuRank {
 public:
  GpuRank(NcclWorld& world, RankParts& parts, int rank)
      : cuda_(world.cuda),
        coordinator_(*parts.coordinator),
        device_(Device::open(world.cuda.driver(), rank)),
        scope_(*device_) {
    world.cuda.driver().stream_create(&stream_, kCudaStreamNonBlocking, 0);
    int usual = kCudaCaptureGlobal;  // of a framework's thread
    world.cuda.driver().exchange_capture_mode(&usual);
  }

  CudaStream stream() const { return stream_; }
  int device() const { return device_->ordinal(); }

  std::shared_ptr<Operation> operation(Request request, const void* in, void* out) {
    auto operation = coordinator_.acquire();
    operation->request = std::move(request);
    operation->request.device = device();
    operation->input = in;
    operation->output = out;
    operation->stream = stream_;
    return operation;
  }
  Handle submit(const Request& request, const void* in, void* out) {
    return coordinator_.submit(operation(request, in, out));
  }
  /// Until it is queued, and the stream waits for it.
  std::shared_ptr<Operation> wait(Handle handle) {
    auto operation = coordinator_.wait(handle);
    coordinator_.device_path().order_after(*operation, stream_);
    return operation;
  }
  /// Until the results can be read here.
  void finish(Handle handle) {
    wait(handle);
    coordinator_.release(handle);
    settle();
  }
  void settle() const { cuda_.settle(stream_); }

 private:
  FakeCuda& cuda_;
  Coordinator& coordinator_;
  const std::shared_ptr<Device> device_;
  const Device::Scope scope_;
  CudaStream stream_ = nullptr;
};

/// `body(rank, parts, gpu)` on every rank. Nothing may have been misused, and nothing is left.
template <class Body>
void with_gpus(NcclWorld& gpus, CoordinatorWorld world, int lanes, Body body) {
  world.size = gpus.tcp.size();
  world.gpu = [&, lanes](int rank) { return gpus.engine(rank, lanes); };
  with_coordinators(world, [&](int rank, RankParts& parts) {
    GpuRank gpu(gpus, parts, rank);
    body(rank, parts, gpu);
  });
  EXPECT_EQ(0, gpus.nccl.misuses()) << gpus.nccl.complaint();
  EXPECT_EQ(0, gpus.cuda.misuses());
  EXPECT_EQ(0, gpus.nccl.communicators());
}

}  // namespace aiacc
