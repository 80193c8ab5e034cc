#include "csrc/base/raw_bytes.h"

#include <algorithm>
#include <deque>
#include <mutex>

namespace aiacc {
namespace {

/// What malloc keeps by itself.
constexpr std::size_t kLeastKept = std::size_t{64} << 10;
constexpr std::size_t kMostBlocks = 64;

/// Sizes that differ little share a block: rounded up by less than an eighth.
std::size_t block_bytes(std::size_t bytes) {
  std::size_t step = kLeastKept / 8;
  while (step * 16 < bytes) {
    step *= 2;
  }
  return (bytes + step - 1) / step * step;
}

struct Block {
  void* memory;
  std::size_t bytes;
};

class Pool {
 public:
  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(
        blocks_.rbegin(), blocks_.rend(), [=](const Block& block) { return block.bytes == bytes; });
    if (found == blocks_.rend()) {
      return nullptr;
    }
    void* const memory = found->memory;
    blocks_.erase(std::next(found).base());
    bytes_ -= bytes;
    return memory;
  }

  /// The oldest give way.
  void put(Block block) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back(block);
    bytes_ += block.bytes;
    while (bytes_ > kMostKeptBytes || blocks_.size() > kMostBlocks) {
      bytes_ -= blocks_.front().bytes;
      ::operator delete(blocks_.front().memory);
      blocks_.pop_front();
    }
  }

 private:
  std::mutex mutex_;
  std::deque<Block> blocks_;  ///< the last one came back last
  std::size_t bytes_ = 0;
};

Pool& pool() {
  static auto* const instance = new Pool;  // leaked: results may outlive static objects
  return *instance;
}

}  // namespace

void* acquire_memory(std::size_t bytes) {
  if (bytes < kLeastKept) {
    return ::operator new(bytes);
  }
  const std::size_t rounded = block_bytes(bytes);
  void* const memory = pool().take(rounded);
  return memory != nullptr ? memory : ::operator new(rounded);
}

void release_memory(void* memory, std::size_t bytes) noexcept {
  if (bytes < kLeastKept) {
    ::operator delete(memory);
    return;
  }
  try {
    pool().put({memory, block_bytes(bytes)});
  } catch (const std::bad_alloc&) {
    ::operator delete(memory);
  }
}

}  // namespace aiacc
