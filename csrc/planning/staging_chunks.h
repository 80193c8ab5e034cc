#pragma once

#include <cstddef>
#include <cstdint>

namespace aiacc {

/// A part of a run of bytes.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

/// What passes through host memory at a time, of operations that may be cut anywhere: enough for
/// the network to be busy while the copies to and from the GPU of its neighbours run, little enough
/// for pinned memory.
inline constexpr std::uint64_t kStagingChunkBytes = std::uint64_t{4} << 20;

/// In how many chunks an operation that moves `bytes` in all passes through host memory; at
/// least 1. Pure: with a number that is equal on all ranks, all cut alike.
std::size_t staging_chunks(std::uint64_t bytes);

/// What of a run of `bytes` belongs to chunk `index` of `chunks`. The ranges follow one another and
/// cover the run; they are equal, and multiples of kSliceAlignment, except that the last ones may
/// be shorter or empty. Pure: sender and receiver of a run cut it alike.
ByteRange staging_chunk(std::uint64_t bytes, std::size_t chunks, std::size_t index);

}  // namespace aiacc
