#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/dtype.h"

namespace aiacc {

enum class CopyDirection : std::uint8_t {
  kPack,    ///< tensors to the wire's buffer
  kUnpack,  ///< and back
};

/// What happens to every element on its way. The rules of kernels/scale.h hold for `factor`, except
/// that an average of less than 2^-100 is not always the nearest number.
struct CopyJob {
  DataType dtype = DataType::kFloat32;  ///< of the tensors
  WireFormat wire = WireFormat::kTensor;
  CopyDirection direction = CopyDirection::kPack;
  double factor = 1.0;
  bool check = false;  ///< fill in CopyReport; needs a floating dtype
};

/// A contiguous run of elements to be moved; the ranges of a batch do not overlap, except that
/// `out` may equal `in` where the element keeps its size.
struct CopySegment {
  const void* in = nullptr;
  void* out = nullptr;
  std::uint64_t count = 0;  ///< elements
};

/// What a checked copy has met in one segment. Set to zero by the caller; bytes, so that threads
/// that agree need no atomic operation, also when this lies in host memory.
struct CopyReport {
  std::uint8_t nan = 0;       ///< not 0: an input element was NaN
  std::uint8_t infinite = 0;  ///< not 0: the largest input element was infinite
  std::uint8_t overflow = 0;  ///< not 0: a finite input became too large for the output's format
  std::uint8_t unused = 0;
};

/// Threads of a block, fixed for all kernels of this family.
inline constexpr std::uint32_t kCopyThreads = 256;

/// A segment as the kernel reads it. Its chunks are numbered from `first_chunk`; a chunk is moved
/// by one block. `head` elements come before the first one that is aligned, on both sides, for
/// accesses of 16 bytes on the wider side; kCopyUnaligned: there is none, and elements are moved
/// one by one.
struct PlannedCopy {
  const void* in;
  void* out;
  std::uint64_t count;
  std::uint32_t first_chunk;
  std::uint32_t head;
};
inline constexpr std::uint32_t kCopyUnaligned = 0xffffffff;

/// The only argument of a kernel: everything travels with the launch, so no memory has to outlive
/// it. `kCapacity` is chosen by the limit of arguments: 4 KiB, or 32764 bytes.
template <int kCapacity>
struct CopyBatch {
  std::uint32_t items;
  std::uint32_t chunks;
  double factor_high;   ///< the factor, rounded to the precision of the arithmetic
  double factor_low;    ///< what is missing of a reciprocal; for integers its divisor, or 0
  CopyReport* reports;  ///< one for each item, or null
  PlannedCopy item[kCapacity];
};
using SmallCopyBatch = CopyBatch<126>;
using LargeCopyBatch = CopyBatch<1022>;
static_assert(sizeof(SmallCopyBatch) <= 4096, "the limit of every driver");
static_assert(sizeof(LargeCopyBatch) <= 32764, "the limit since CUDA 12.1");

/// One kernel and its twin on the host.
struct CopyKernel {
  const char* name;  ///< in the device image; the one for LargeCopyBatch ends in "_large"
  const char* large_name;
  std::uint32_t in_bytes;  ///< of an element
  std::uint32_t out_bytes;
  std::uint32_t vector;  ///< elements of one access
  std::uint32_t chunk;   ///< elements that a block moves at a time
  /// What `blocks` blocks do, one thread after another.
  void (*run_small)(const SmallCopyBatch& batch, std::uint32_t blocks);
  void (*run_large)(const LargeCopyBatch& batch, std::uint32_t blocks);
};

/// All kernels; the numbers that choose_copy_kernel returns are indices into it.
const std::vector<CopyKernel>& copy_kernels();

/// The kernel for `job`. Where bytes need not be looked at, it is one that only moves them, in
/// pieces as large as the addresses of `segments` allow. Throws Error(kUnsupported) if the dtype
/// cannot travel in that format or be checked, Error(kInvalidArgument) if an address is not a
/// multiple of the element's size.
std::size_t choose_copy_kernel(const CopyJob& job, const CopySegment* segments, std::size_t count);

/// Fills in the argument of a launch: divides `count` segments, at most the capacity of the batch,
/// into chunks. `reports`: as many, or null. Pure. Throws Error(kInvalidArgument) beyond 2^31
/// chunks.
template <int kCapacity>
void plan_copies(const CopyKernel& kernel,
                 const CopyJob& job,
                 const CopySegment* segments,
                 std::size_t count,
                 CopyReport* reports,
                 CopyBatch<kCapacity>& batch);

extern template void plan_copies(const CopyKernel&,
                                 const CopyJob&,
                                 const CopySegment*,
                                 std::size_t,
                                 CopyReport*,
                                 SmallCopyBatch&);
extern template void plan_copies(const CopyKernel&,
                                 const CopyJob&,
                                 const CopySegment*,
                                 std::size_t,
                                 CopyReport*,
                                 LargeCopyBatch&);

}  // namespace aiacc
