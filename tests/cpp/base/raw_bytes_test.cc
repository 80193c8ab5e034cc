#include "csrc/base/raw_bytes.h"

#include <gtest/gtest.h>

namespace aiacc {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Fills the pool with one block, so that the blocks of other tests are gone.
void* only_block(std::size_t bytes) {
  release_memory(acquire_memory(kMostKeptBytes), kMostKeptBytes);
  void* const memory = acquire_memory(bytes);
  release_memory(memory, bytes);
  return memory;
}

TEST(RawBytesTest, MemoryOfAboutTheSameSizeIsUsedAgainUnlessItIsInUse) {
  void* const block = only_block(kMiB);
  for (const auto& [bytes, again] : {std::pair(kMiB, true),
                                     {kMiB - 1000, true},
                                     {kMiB, true},
                                     {kMiB + 1, false},
                                     {kMiB / 2, false}}) {
    void* const memory = acquire_memory(bytes);
    EXPECT_EQ(block == memory, again) << bytes;
    release_memory(memory, bytes);
  }
  void* const first = only_block(kMiB);
  EXPECT_EQ(acquire_memory(kMiB), first);
  void* const second = acquire_memory(kMiB);
  EXPECT_NE(first, second);
  release_memory(first, kMiB);
  release_memory(second, kMiB);
}

TEST(RawBytesTest, ResizeLeavesOldContent) {
  only_block(kMiB);
  {
    RawBytes bytes;
    bytes.resize(kMiB);
    bytes[7] = 42;
  }
  RawBytes bytes;
  bytes.resize(kMiB);
  EXPECT_EQ(42, bytes[7]);
  bytes.assign(kMiB, 0);
  EXPECT_EQ(0, bytes[7]);
}

}  // namespace
}  // namespace aiacc
