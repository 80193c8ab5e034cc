#include "csrc/kernels/batch_copy.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/batch_copy_body.h"
#include "csrc/kernels/batch_copy_pairs.h"
#include "csrc/kernels/divisor.h"
#include "csrc/kernels/half_bits.h"

namespace aiacc {
namespace {

struct HostCodec {
  static float widen(float value) { return value; }
  static double widen(double value) { return value; }
  static float widen(Float16 value) { return half_bits_to_float(value.bits); }
  static float widen(BFloat16 value) { return bfloat16_bits_to_float(value.bits); }
  template <class F>
  static float widen(F value) {
    return widen_float8(value);
  }
  template <class Out, class Wide>
  static Out narrow(Wide value) {
    if constexpr (std::is_same_v<Out, Wide>) {
      return value;
    } else if constexpr (std::is_same_v<Out, Float16>) {
      return {float_to_half_bits(value)};
    } else if constexpr (std::is_same_v<Out, BFloat16>) {
      return {float_to_bfloat16_bits(value)};
    } else {
      return narrow_float8<Out>(value);
    }
  }
};

template <class Operation, class Batch>
void run(const Batch& batch, std::uint32_t blocks) {
  for (std::uint32_t block = 0; block < blocks; ++block) {
    for (std::uint32_t thread = 0; thread < kCopyThreads; ++thread) {
      copy_share<Operation>(batch, block, blocks, thread);
    }
  }
}

template <class Operation>
CopyKernel describe(const char* name, const char* large_name) {
  using In = typename Operation::In;
  using Out = typename Operation::Out;
  return {name,
          large_name,
          sizeof(In),
          sizeof(Out),
          kCopyVector<In, Out>,
          kCopyChunk<In, Out>,
          &run<Operation, SmallCopyBatch>,
          &run<Operation, LargeCopyBatch>};
}

/// Formats that narrow nothing are the tensor's own.
WireFormat narrowing(DataType dtype, WireFormat wire) {
  const bool same = (dtype == DataType::kFloat16 && wire == WireFormat::kFloat16) ||
                    (dtype == DataType::kBFloat16 && wire == WireFormat::kBFloat16);
  return same ? WireFormat::kTensor : wire;
}

std::size_t find_kernel(const std::string& name) {
  const std::vector<CopyKernel>& kernels = copy_kernels();
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (name == kernels[i].name) {
      return i;
    }
  }
  throw Error(Code::kInternal, "[kernels] no kernel is called " + name);
}

/// The largest piece, up to `bytes`, that all addresses are multiples of.
std::size_t common_alignment(std::size_t bytes, const CopySegment* segments, std::size_t count) {
  std::uintptr_t all = bytes;
  for (std::size_t i = 0; i < count; ++i) {
    all |= reinterpret_cast<std::uintptr_t>(segments[i].in);
    all |= reinterpret_cast<std::uintptr_t>(segments[i].out);
  }
  return all & (~all + 1);
}

void check_addresses(const CopyKernel& kernel, const CopySegment* segments, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto in = reinterpret_cast<std::uintptr_t>(segments[i].in);
    const auto out = reinterpret_cast<std::uintptr_t>(segments[i].out);
    if (in % kernel.in_bytes != 0 || out % kernel.out_bytes != 0) {
      throw Error(Code::kInvalidArgument,
                  "[kernels] segment " + std::to_string(i) + " goes from address " +
                      std::to_string(in) + " to " + std::to_string(out) +
                      " (expected multiples of its elements' " + std::to_string(kernel.in_bytes) +
                      " and " + std::to_string(kernel.out_bytes) +
                      " bytes); copy the tensor into memory of its own");
    }
  }
}

/// Elements before the first that is aligned on both sides, or kCopyUnaligned.
std::uint32_t head_of(const CopyKernel& kernel, const CopySegment& segment, std::uint64_t count) {
  const auto in = reinterpret_cast<std::uintptr_t>(segment.in) / kernel.in_bytes % kernel.vector;
  const auto out = reinterpret_cast<std::uintptr_t>(segment.out) / kernel.out_bytes % kernel.vector;
  const auto head = static_cast<std::uint32_t>((kernel.vector - in) % kernel.vector);
  return in == out && head + kernel.vector <= count ? head : kCopyUnaligned;
}

}  // namespace

const std::vector<CopyKernel>& copy_kernels() {
  // NOLINTBEGIN(bugprone-macro-parentheses): types
#define AIACC_COPY_KERNEL(name, Operation, In, Out) \
  describe<Operation<In, Out, HostCodec>>("aiacc_copy_" #name, "aiacc_copy_" #name "_large"),
  static const std::vector<CopyKernel> kernels = {AIACC_COPY_KERNELS(AIACC_COPY_KERNEL)};
#undef AIACC_COPY_KERNEL
  // NOLINTEND(bugprone-macro-parentheses)
  return kernels;
}

std::size_t choose_copy_kernel(const CopyJob& job, const CopySegment* segments, std::size_t count) {
  const WireFormat wire = narrowing(job.dtype, job.wire);
  const std::string dtype = name_of(job.dtype);
  if (wire != WireFormat::kTensor && job.dtype != DataType::kFloat32) {
    throw Error(Code::kUnsupported,
                "[kernels] " + dtype + " cannot travel as " + name_of(wire) +
                    " (expected float32); leave it as it is");
  }
  if (job.check && !is_floating(job.dtype)) {
    throw Error(Code::kUnsupported,
                "[kernels] a check of " + dtype +
                    " for NaN (expected a floating-point type); switch the check off for it");
  }
  if (wire == WireFormat::kTensor && job.factor == 1.0 && !job.check) {
    const std::size_t piece = common_alignment(size_of(job.dtype), segments, count);
    return find_kernel("aiacc_copy_raw" + std::to_string(piece));
  }
  const std::string other = wire == WireFormat::kTensor ? dtype : name_of(wire);
  const bool packs = job.direction == CopyDirection::kPack;
  const std::size_t chosen =
      find_kernel("aiacc_copy_" + (packs ? dtype + "_" + other : other + "_" + dtype));
  check_addresses(copy_kernels()[chosen], segments, count);
  return chosen;
}

template <int kCapacity>
void plan_copies(const CopyKernel& kernel,
                 const CopyJob& job,
                 const CopySegment* segments,
                 std::size_t count,
                 CopyReport* reports,
                 CopyBatch<kCapacity>& batch) {
  AIACC_CHECK(count <= static_cast<std::size_t>(kCapacity));
  batch.items = static_cast<std::uint32_t>(count);
  batch.reports = reports;
  batch.factor_high = job.factor;
  batch.factor_low = 0;
  if (!is_floating(job.dtype)) {
    batch.factor_low = reciprocal_of(job.factor);
  } else if (const std::uint32_t divisor = divisor_of(job.factor); divisor != 0) {
    if (job.dtype == DataType::kFloat64) {
      batch.factor_low = std::fma(-job.factor, divisor, 1.0) / divisor;
    } else {
      batch.factor_high = static_cast<float>(job.factor);
      batch.factor_low = job.factor - batch.factor_high;
    }
  }
  // Kernels that only move bits may do so in smaller pieces than elements.
  const std::size_t element = job.direction == CopyDirection::kPack
                                  ? size_of(job.dtype)
                                  : size_on_wire(job.dtype, job.wire);
  const std::size_t pieces = element / kernel.in_bytes;
  std::uint64_t chunks = 0;
  for (std::size_t i = 0; i < count; ++i) {
    PlannedCopy& item = batch.item[i];
    const std::uint64_t total = segments[i].count * pieces;
    item = {segments[i].in,
            segments[i].out,
            total,
            static_cast<std::uint32_t>(chunks),
            head_of(kernel, segments[i], total)};
    const std::uint64_t body = item.head == kCopyUnaligned ? total : total - item.head;
    chunks += (body + kernel.chunk - 1) / kernel.chunk;
    if (chunks > std::uint64_t{1} << 31) {
      throw Error(Code::kInvalidArgument,
                  "[kernels] a batch of more than 2^31 chunks of " + std::to_string(kernel.chunk) +
                      " elements; use smaller units");
    }
  }
  batch.chunks = static_cast<std::uint32_t>(chunks);
}

template void plan_copies(const CopyKernel&,
                          const CopyJob&,
                          const CopySegment*,
                          std::size_t,
                          CopyReport*,
                          SmallCopyBatch&);
template void plan_copies(const CopyKernel&,
                          const CopyJob&,
                          const CopySegment*,
                          std::size_t,
                          CopyReport*,
                          LargeCopyBatch&);

}  // namespace aiacc
