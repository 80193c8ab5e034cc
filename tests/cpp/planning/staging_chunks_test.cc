#include "csrc/planning/staging_chunks.h"

#include <gtest/gtest.h>

#include "csrc/planning/unit_planner.h"

namespace aiacc {
namespace {

TEST(StagingChunks, AreAsFewAsTheLimitAllows) {
  EXPECT_EQ(staging_chunks(0), 1U);
  EXPECT_EQ(staging_chunks(1), 1U);
  EXPECT_EQ(staging_chunks(kStagingChunkBytes), 1U);
  EXPECT_EQ(staging_chunks(kStagingChunkBytes + 1), 2U);
  EXPECT_EQ(staging_chunks(10 * kStagingChunkBytes), 10U);
}

TEST(StagingChunks, CoverEveryRunOnceAndInOrder) {
  for (const std::uint64_t bytes : {0ULL, 1ULL, 255ULL, 256ULL, 257ULL, 5000ULL, 9999999ULL}) {
    for (const std::size_t chunks : {1U, 2U, 3U, 7U, 64U}) {
      std::uint64_t end = 0;
      for (std::size_t i = 0; i < chunks; ++i) {
        const ByteRange range = staging_chunk(bytes, chunks, i);
        EXPECT_EQ(range.begin, end) << bytes << " bytes, chunk " << i << " of " << chunks;
        EXPECT_LE(range.bytes, bytes / chunks + kSliceAlignment);
        EXPECT_TRUE(range.begin % kSliceAlignment == 0 || range.bytes == 0);
        end = range.begin + range.bytes;
      }
      EXPECT_EQ(end, bytes);
    }
  }
}

}  // namespace
}  // namespace aiacc
