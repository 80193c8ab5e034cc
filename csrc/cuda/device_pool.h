#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/cuda/device.h"

namespace aiacc {

/// Memory of a GPU, to be used again in the order of streams.
struct DeviceBlock {
  CudaAddress address = 0;
  std::size_t capacity = 0;
  std::vector<Mark> users;  ///< what has to be over before somebody else writes to it
};

/// For results whose size only the ranks together know: their memory cannot come from the
/// framework.
///
/// Threads: any. Keeps what it has until the GPU has no memory for another block, or until it ends,
/// which needs all blocks back and all streams idle.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
 public:
  static std::shared_ptr<DevicePool> make(std::shared_ptr<Device> device);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// A block of at least so many bytes for `stream`, which waits for its earlier users. It is the
  /// pool's again when the last reference goes. Needs a Device::Scope. Waits for the GPU when no
  /// block fits; else not.
  std::shared_ptr<DeviceBlock> take(std::size_t bytes, CudaStream stream);

 private:
  explicit DevicePool(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  bool release_idle();

  const std::shared_ptr<Device> device_;
  std::mutex mutex_;
  std::size_t blocks_ = 0;
  std::vector<std::unique_ptr<DeviceBlock>> spare_;
};

}  // namespace aiacc
