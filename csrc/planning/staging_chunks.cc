#include "csrc/planning/staging_chunks.h"

#include <algorithm>

#include "csrc/planning/unit_planner.h"

namespace aiacc {

std::size_t staging_chunks(std::uint64_t bytes) {
  return static_cast<std::size_t>(std::max<std::uint64_t>(
      1, bytes / kStagingChunkBytes + (bytes % kStagingChunkBytes == 0 ? 0 : 1)));
}

ByteRange staging_chunk(std::uint64_t bytes, std::size_t chunks, std::size_t index) {
  const std::uint64_t share = bytes / chunks + (bytes % chunks == 0 ? 0 : 1);
  const std::uint64_t step = (share + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
  const std::uint64_t begin = std::min(bytes, step * index);
  return {begin, std::min(bytes - begin, step)};
}

}  // namespace aiacc
