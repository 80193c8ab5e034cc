#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/cuda/device.h"
#include "csrc/engines/nccl/nccl_api.h"

namespace aiacc {

/// The streams and buffers of the lanes of one rank's GPU. Engines that are split from each other
/// share them: one stream per lane keeps their operations in order.
///
/// Threads: `open` and `quiesce` any, the others the issuing one, after `open`.
class NcclDevice {
 public:
  /// `proposed`: the device if nobody asks for one.
  NcclDevice(const CudaDriver& cuda, const NcclApi& nccl, int lanes, int proposed)
      : cuda_(cuda), nccl_(nccl), proposed_(proposed), lanes_(static_cast<std::size_t>(lanes)) {}
  /// The streams are empty by then, or the device has failed.
  ~NcclDevice();
  NcclDevice(const NcclDevice&) = delete;
  NcclDevice& operator=(const NcclDevice&) = delete;

  const NcclApi& nccl() const { return nccl_; }
  int lanes() const { return static_cast<int>(lanes_.size()); }

  /// See DeviceEngine::device.
  std::shared_ptr<Device> open(int ordinal);
  /// Of the device that was opened.
  const Device& device() const { return *device_; }
  /// An attribute of the device whose context is current.
  int attribute(int number) const;
  CudaStream stream(int lane) const { return lane_at(lane).stream; }

  struct Buffer {
    void* memory = nullptr;
    std::size_t capacity = 0;
  };
  /// See DeviceEngine::buffer. Earlier ones stay until the end, for work that is still queued.
  const Buffer& buffer(int lane, std::size_t bytes);

  /// See DeviceEngine::quiesce.
  bool quiesce(Clock::time_point deadline) noexcept;

 private:
  struct Lane {
    CudaStream stream = nullptr;
    Buffer buffer;
    std::vector<void*> outgrown;
  };
  /// Lanes of the planner may be more: they share.
  const Lane& lane_at(int lane) const {
    return lanes_[static_cast<std::size_t>(lane) % lanes_.size()];
  }

  const CudaDriver& cuda_;
  const NcclApi& nccl_;
  const int proposed_;
  std::mutex mutex_;  ///< guards the opening
  std::shared_ptr<Device> device_;
  std::vector<Lane> lanes_;
};

}  // namespace aiacc
