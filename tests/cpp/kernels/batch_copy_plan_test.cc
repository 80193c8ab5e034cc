#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/batch_copy.h"

// What a launch is told; batch_copy_test.cc looks at what it does.

namespace aiacc {
namespace {

/// Address of byte `at` in a space that nobody touches.
void* address(std::uint64_t at) { return reinterpret_cast<void*>(std::uintptr_t{1} << 40 | at); }

const CopyKernel& kernel_for(const CopyJob& job, const CopySegment& segment) {
  return copy_kernels()[choose_copy_kernel(job, &segment, 1)];
}

CopyJob cast_to(WireFormat wire, CopyDirection direction = CopyDirection::kPack) {
  return {DataType::kFloat32, wire, direction, 1.0, false};
}

TEST(BatchCopyPlanTest, ChunksFollowEachOtherAndHeadsAlign) {
  const CopyJob job = cast_to(WireFormat::kBFloat16);
  const CopyKernel& kernel = kernel_for(job, {address(0), address(0), 1});
  ASSERT_EQ(4u, kernel.vector);
  ASSERT_EQ(4096u, kernel.chunk);
  const std::vector<CopySegment> segments = {
      {address(0), address(1 << 20), 4096},        // aligned, one chunk
      {address(4), address(2 + (2 << 20)), 4099},  // three elements, then one chunk
      {address(8), address(4 + (3 << 20)), 4099},  // two elements, a chunk and a rest
      {address(0), address(4 << 20), 0},           // nothing
      {address(0), address(2 + (5 << 20)), 5000},  // never aligned on both sides
      {address(4), address(2 + (6 << 20)), 3},     // too short for an aligned access
  };
  SmallCopyBatch batch;
  plan_copies(kernel, job, segments.data(), segments.size(), nullptr, batch);
  EXPECT_EQ(6u, batch.items);
  const std::uint32_t first[] = {0, 1, 2, 4, 4, 6};
  const std::uint32_t head[] = {0, 3, 2, kCopyUnaligned, kCopyUnaligned, kCopyUnaligned};
  for (std::size_t i = 0; i < segments.size(); ++i) {
    EXPECT_EQ(first[i], batch.item[i].first_chunk) << i;
    EXPECT_EQ(head[i], batch.item[i].head) << i;
  }
  EXPECT_EQ(7u, batch.chunks);
}

TEST(BatchCopyPlanTest, MoreThanTwoGibibytes) {
  const std::uint64_t bytes = (std::uint64_t{5} << 30) + 12;
  const CopyJob raw{DataType::kFloat32, WireFormat::kTensor, CopyDirection::kPack, 1.0, false};
  const CopySegment segment{address(4), address((std::uint64_t{1} << 39) + 4), bytes / 4};
  const CopyKernel& kernel = kernel_for(raw, segment);
  EXPECT_STREQ("aiacc_copy_raw4", kernel.name);
  SmallCopyBatch batch;
  plan_copies(kernel, raw, &segment, 1, nullptr, batch);
  EXPECT_EQ(bytes / 4, batch.item[0].count);
  EXPECT_EQ(3u, batch.item[0].head);
  EXPECT_EQ((std::uint64_t{5} << 30) / 16384, batch.chunks);
}

TEST(BatchCopyPlanTest, TooManyChunks) {
  const CopyJob raw{DataType::kUInt8, WireFormat::kTensor, CopyDirection::kPack, 1.0, false};
  const CopySegment segment{address(0), address(1), std::uint64_t{1} << 46};
  SmallCopyBatch batch;
  EXPECT_THROW(plan_copies(kernel_for(raw, segment), raw, &segment, 1, nullptr, batch), Error);
}

TEST(BatchCopyPlanTest, ChoosesTheKernel) {
  const auto name = [](const CopyJob& job, std::uint64_t in, std::uint64_t out) {
    return std::string(kernel_for(job, {address(in), address(out), 8}).name);
  };
  CopyJob job{DataType::kFloat64, WireFormat::kTensor, CopyDirection::kPack, 1.0, false};
  EXPECT_EQ("aiacc_copy_raw8", name(job, 8, 16));
  EXPECT_EQ("aiacc_copy_raw4", name(job, 8, 4));
  EXPECT_EQ("aiacc_copy_raw1", name(job, 3, 8));
  job.check = true;
  EXPECT_EQ("aiacc_copy_float64_float64", name(job, 0, 0));
  EXPECT_THROW(name(job, 4, 0), Error);
  job = cast_to(WireFormat::kFloat8E4M3, CopyDirection::kUnpack);
  EXPECT_EQ("aiacc_copy_float8_e4m3_float32", name(job, 1, 4));
  // A format that the tensor has already narrows nothing.
  job = {DataType::kBFloat16, WireFormat::kBFloat16, CopyDirection::kPack, 1.0, false};
  EXPECT_EQ("aiacc_copy_raw2", name(job, 0, 0));
}

TEST(BatchCopyPlanTest, RefusesWhatItCannotDo) {
  const CopySegment segment{address(0), address(0), 8};
  const auto code_of = [&](const CopyJob& job) {
    try {
      choose_copy_kernel(job, &segment, 1);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kOk;
  };
  EXPECT_EQ(Code::kUnsupported,
            code_of({DataType::kInt32, WireFormat::kFloat16, CopyDirection::kPack, 1.0, false}));
  EXPECT_EQ(Code::kUnsupported,
            code_of({DataType::kInt32, WireFormat::kTensor, CopyDirection::kPack, 1.0, true}));
}

}  // namespace
}  // namespace aiacc
