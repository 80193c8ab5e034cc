#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "csrc/base/raw_bytes.h"
#include "tests/cpp/support/coordinators.h"
#include "tests/cpp/support/nccl_world.h"

namespace aiacc {

/// Where tensors are: in host memory, or on GPUs in software, from which they pass through the
/// host or go over NCCL.
enum class Place { kHost, kStaged, kNccl };

/// What a front-end does in one thread of a rank: it submits tensors in host memory (`gpu` is -1),
/// or on the GPU of that number, with a stream of its own there. The memory of the device is the
/// host's in these tests.
class Submitter {
 public:
  Submitter(FakeCuda& cuda, RankParts& parts, int gpu)
      : cuda_(cuda), coordinator_(*parts.coordinator), gpu_(gpu) {
    if (gpu >= 0) {
      device_ = Device::open(cuda.driver(), gpu);
      scope_.emplace(*device_);
      cuda.driver().stream_create(&stream_, kCudaStreamNonBlocking, 0);
      int usual = kCudaCaptureGlobal;  // of a framework's thread
      cuda.driver().exchange_capture_mode(&usual);
    }
  }

  CudaStream stream() const { return stream_; }

  std::shared_ptr<Operation> operation(Request request, const void* in, void* out) {
    auto operation = coordinator_.acquire();
    operation->request = std::move(request);
    operation->request.device = gpu_;
    operation->buffers[0].input = in;
    operation->buffers[0].output = out;
    operation->stream = stream_;
    return operation;
  }
  Handle submit(const Request& request, const void* in, void* out) {
    return coordinator_.submit(operation(request, in, out));
  }
  /// A tensor that is reduced in place.
  Handle submit(Request request, std::vector<float>& values) {
    request.tensors[0].shape = {static_cast<std::int64_t>(values.size())};
    return submit(request, values.data(), values.data());
  }
  /// Until it is done: on a GPU until it is queued, and the stream waits for it.
  std::shared_ptr<Operation> wait(Handle handle) {
    auto operation = coordinator_.wait(handle);
    if (gpu_ >= 0) {
      coordinator_.device_path().order_after(*operation, stream_);
    }
    return operation;
  }
  /// Until the results can be read here.
  void finish(Handle handle) {
    wait(handle);
    coordinator_.release(handle);
    settle();
  }
  /// The rows that have come, wherever they are.
  RawBytes gathered(Operation& operation, std::size_t tensor = 0) {
    if (gpu_ < 0) {
      return operation.buffers[tensor].gathered;
    }
    std::int64_t rows = 0;
    for (const std::int64_t some : operation.buffers[tensor].first_extents) {
      rows += some;
    }
    RawBytes bytes(static_cast<std::size_t>(rows) * operation.request.tensors[tensor].row_bytes());
    coordinator_.device_path().copy_gathered(operation, tensor, bytes.data(), stream_);
    settle();
    return bytes;
  }
  void settle() const {
    if (gpu_ >= 0) {
      cuda_.settle(stream_);
    }
  }

 private:
  FakeCuda& cuda_;
  Coordinator& coordinator_;
  const int gpu_;
  std::shared_ptr<Device> device_;
  std::optional<Device::Scope> scope_;
  CudaStream stream_ = nullptr;
};

/// `body(rank, parts)` on every rank, whose tensors on GPUs go the way of this place, over NCCL on
/// `lanes` lanes. Nothing may have been misused, and nothing is left.
template <class Body>
void with_gpus(NcclWorld& gpus, Place place, CoordinatorWorld world, int lanes, Body body) {
  world.size = gpus.tcp.size();
  if (place == Place::kNccl && !world.gpu) {
    world.gpu = [&, lanes](int rank) { return gpus.engine(rank, lanes); };
  } else if (place == Place::kStaged) {
    world.options.staging = [&]() -> const CudaDriver& { return gpus.cuda.driver(); };
  }
  with_coordinators(world, body);
  EXPECT_EQ(0, gpus.nccl.misuses()) << gpus.nccl.complaint();
  EXPECT_EQ(0, gpus.cuda.misuses());
  EXPECT_EQ(0, gpus.nccl.communicators());
}

/// `body(rank, parts, submitter)`, of tensors in this place.
template <class Body>
void with_submitters(NcclWorld& gpus, Place place, CoordinatorWorld world, int lanes, Body body) {
  with_gpus(gpus, place, std::move(world), lanes, [&](int rank, RankParts& parts) {
    Submitter submitter(gpus.cuda, parts, place == Place::kHost ? -1 : rank * gpus.gpus_each);
    body(rank, parts, submitter);
  });
}

/// The same over NCCL.
template <class Body>
void with_gpus(NcclWorld& gpus, CoordinatorWorld world, int lanes, Body body) {
  with_submitters(gpus, Place::kNccl, std::move(world), lanes, body);
}

}  // namespace aiacc
