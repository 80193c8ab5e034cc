#include "csrc/cuda/device_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace aiacc {
namespace {

constexpr std::size_t kGrain = std::size_t{1} << 16;

/// A block of more than that many times what is needed is left to somebody else.
constexpr std::size_t kMostWaste = 4;

}  // namespace

std::shared_ptr<DevicePool> DevicePool::make(std::shared_ptr<Device> device) {
  return std::shared_ptr<DevicePool>(new DevicePool(std::move(device)));
}

DevicePool::~DevicePool() {
  try {
    const Device::Scope scope(*device_);
    for (const auto& block : spare_) {
      AIACC_CUDA_LOG(device_->driver(), release, block->address);
    }
  } catch (const Error&) {
    // The driver is shutting down, and its memory with it.
  }
}

std::shared_ptr<DeviceBlock> DevicePool::take(std::size_t bytes, CudaStream stream) {
  const std::size_t wanted = std::max((bytes + kGrain - 1) / kGrain, std::size_t{1}) * kGrain;
  std::unique_ptr<DeviceBlock> block;
  {
    const std::lock_guard lock(mutex_);
    auto best = spare_.end();
    for (auto at = spare_.begin(); at != spare_.end(); ++at) {
      const std::size_t capacity = (*at)->capacity;
      if (capacity >= wanted && capacity / kMostWaste <= wanted &&
          (best == spare_.end() || capacity < (*best)->capacity)) {
        best = at;
      }
    }
    if (best != spare_.end()) {
      block = std::move(*best);
      spare_.erase(best);
    } else {
      spare_.reserve(++blocks_);  // so that it can be given back without memory
    }
  }
  if (block == nullptr) {
    block = std::make_unique<DeviceBlock>();
    CudaResult result = device_->driver().allocate(&block->address, wanted);
    if (result == kCudaOutOfMemory && release_idle()) {
      result = device_->driver().allocate(&block->address, wanted);
    }
    check_cuda(device_->driver(), result, "allocate");
    block->capacity = wanted;
  }
  for (const Mark& user : block->users) {
    device_->wait(stream, user);
  }
  block->users.clear();
  const auto give_back = [pool = shared_from_this()](DeviceBlock* used) {
    const std::lock_guard lock(pool->mutex_);
    pool->spare_.emplace_back(used);
  };
  return {block.release(), give_back};
}

/// Whether there was anything to give back to the GPU.
bool DevicePool::release_idle() {
  std::vector<std::unique_ptr<DeviceBlock>> idle;
  {
    const std::lock_guard lock(mutex_);
    const auto first = std::partition(spare_.begin(), spare_.end(), [&](const auto& block) {
      return !std::all_of(block->users.begin(), block->users.end(), [&](const Mark& user) {
        return device_->reached(user);
      });
    });
    idle.assign(std::make_move_iterator(first), std::make_move_iterator(spare_.end()));
    spare_.erase(first, spare_.end());
    blocks_ -= idle.size();
  }
  for (const auto& block : idle) {
    AIACC_CUDA_LOG(device_->driver(), release, block->address);
  }
  return !idle.empty();
}

}  // namespace aiacc
