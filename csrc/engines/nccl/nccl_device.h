#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/base/event.h"
#include "csrc/cuda/device.h"
#include "csrc/engines/nccl/nccl_api.h"

namespace aiacc {

/// Streams of high priority and buffers of the lanes of one GPU. Engines that are split from each
/// other share them: one stream per lane keeps their operations in order.
///
/// Threads: `quiesce` any, the others the issuing one. The tables outlive it.
class NcclDevice {
 public:
  /// Needs a Device::Scope.
  NcclDevice(std::shared_ptr<Device> device, const NcclApi& nccl, int lanes);
  /// The streams are empty by then, or the device has failed.
  ~NcclDevice();
  NcclDevice(const NcclDevice&) = delete;
  NcclDevice& operator=(const NcclDevice&) = delete;

  const std::shared_ptr<Device>& device() const { return device_; }
  CudaStream stream(int lane) const { return lane_at(lane).stream; }
  CudaStream pack_stream(int lane) const { return lane_at(lane).pack_stream; }

  struct Buffer {
    void* memory = nullptr;
    std::size_t capacity = 0;
  };
  /// Buffers of a lane, which take turns: one is packed while the other is on its way.
  static constexpr std::size_t kRing = 2;
  /// See DeviceEngine::buffer. Outgrown ones stay until the end, for work that is still queued.
  const Buffer& buffer(int lane, std::size_t bytes);
  /// The one of the lane that holds this memory, or null.
  const Buffer* find(int lane, const void* memory) const;

  /// See DeviceEngine::quiesce.
  bool quiesce(Clock::time_point deadline) const;

 private:
  struct Lane {
    CudaStream stream = nullptr;
    CudaStream pack_stream = nullptr;
    std::array<Buffer, kRing> ring;
    std::size_t next = 0;
    std::vector<void*> outgrown;
  };
  /// Lanes of the planner may be more: they share.
  const Lane& lane_at(int lane) const {
    return lanes_[static_cast<std::size_t>(lane) % lanes_.size()];
  }

  const std::shared_ptr<Device> device_;
  const NcclApi& nccl_;
  std::vector<Lane> lanes_;
};

/// The GPUs that one rank uses, most often one. Threads: any.
class NcclDevices {
 public:
  /// `proposed`: the device if nobody asks for one, and if there are so many.
  NcclDevices(const CudaDriver& cuda, const NcclApi& nccl, int lanes, int proposed)
      : cuda_(cuda), nccl_(nccl), lanes_(lanes), proposed_(proposed) {}

  const NcclApi& nccl() const { return nccl_; }
  int lanes() const { return lanes_; }
  /// See DeviceEngine::open.
  std::shared_ptr<NcclDevice> on(int ordinal);
  /// An attribute of the device whose context is current.
  int attribute(int number) const;
  bool quiesce(Clock::time_point deadline) noexcept;

 private:
  const CudaDriver& cuda_;
  const NcclApi& nccl_;
  const int lanes_;
  const int proposed_;
  std::mutex mutex_;
  int first_ = -1;
  std::map<int, std::shared_ptr<NcclDevice>> devices_;  ///< by ordinal
};

}  // namespace aiacc
