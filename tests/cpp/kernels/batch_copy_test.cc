// The kernels that pack and unpack: their bodies on the host, and launched on a GPU in software.
// What they have to give is in copy_check.h.

#include "csrc/kernels/batch_copy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/kernels/copy_check.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr CopyTwin kTwin = {2};

CopyJob pack_to(WireFormat wire, bool check = false) {
  return {DataType::kFloat32, wire, CopyDirection::kPack, 1.0, check};
}
CopyJob average_over(int ranks, DataType dtype) {
  return {dtype, WireFormat::kTensor, CopyDirection::kUnpack, 1.0 / ranks, false};
}

using CopiesTest = GpuKernelsTest;

/// As many tensors, of sizes from 0 on.
std::vector<std::size_t> many(std::size_t number) {
  std::vector<std::size_t> counts(number);
  for (std::size_t i = 0; i < number; ++i) {
    counts[i] = i % 300;
  }
  return counts;
}

TEST_F(CopiesTest, EveryElementOnceAndNoByteBesideThem) {
  unsigned number = 0;
  for (const CopyJob& job : copy_jobs()) {
    const std::uint32_t blocks[] = {1, 3, 5, 64};
    const CopyTwin twin = {blocks[++number % 4]};
    const auto counts = {1, 0, 5000, 17, 0, 16384, 3, 40000, 15, 0};
    ASSERT_EQ("", check_copies(rig_, twin, job, {counts.begin(), counts.end()}, number));
  }
  ASSERT_EQ("", check_copies(rig_, kTwin, pack_to(WireFormat::kTensor), many(1022), 1));
  ASSERT_EQ("", check_copies(rig_, kTwin, pack_to(WireFormat::kFloat16, true), many(1022), 2));
}

TEST_F(CopiesTest, OneLaunchForAThousandTensors) {
  BatchCopier copier(driver(), image());
  int launches = 0;
  const auto queued = [&](const CopyJob& job, const auto& segments, CopyReport* reports) {
    launches = launches_of([&] { copier.enqueue(rig_.stream(), job, segments, reports); });
  };
  for (const std::size_t count : {2, 126, 127, 1022, 1023, 2500}) {
    const CopyJob job = pack_to(WireFormat::kBFloat16, count % 2 == 0);
    ASSERT_EQ("", check_copies(rig_, queued, job, many(count), 1));
    EXPECT_EQ(static_cast<int>((count + 1021) / 1022), launches) << count;
  }
}

TEST(CopyTest, AnAverageIsTheNearestNumber) {
  std::mt19937 random(5);
  for (const int ranks : {3, 5, 7, 12, 24, 1000, 65535}) {
    std::vector<float> in(20000);
    for (float& x : in) {
      const std::uint32_t bits = random();
      std::memcpy(&x, &bits, sizeof x);
    }
    std::vector<float> out(in.size());
    kTwin(average_over(ranks, DataType::kFloat32), {{in.data(), out.data(), in.size()}});
    for (std::size_t i = 0; i < in.size(); ++i) {
      const float expected = in[i] / static_cast<float>(ranks);
      if (std::abs(expected) >= 0x1p-100f || expected == 0 || std::isnan(expected)) {
        ASSERT_TRUE(same(expected, out[i])) << in[i] << " over " << ranks;
      }
    }
    std::vector<double> wide = {1.0, 0.1, 3.0, -1e300, 7e-300, -0.0, 2.0 / 3};
    std::vector<double> average(wide.size());
    kTwin(average_over(ranks, DataType::kFloat64), {{wide.data(), average.data(), wide.size()}});
    for (std::size_t i = 0; i < wide.size(); ++i) {
      EXPECT_TRUE(same(wide[i] / ranks, average[i])) << wide[i] << " over " << ranks;
    }
  }
}

TEST(CopyTest, InPlace) {
  std::vector<float> values(5001, 3.0F);
  kTwin({DataType::kFloat32, WireFormat::kTensor, CopyDirection::kPack, 2.0, false},
        {{values.data() + 1, values.data() + 1, 5000}});
  EXPECT_EQ(3.0F, values[0]);
  EXPECT_EQ(5000, std::count(values.begin(), values.end(), 6.0F));
}

TEST(CopyTest, TheReportNamesTheTensor) {
  std::vector<std::vector<float>> tensors(6, std::vector<float>(9001, 1.0f));
  tensors[1][9000] = kNan;
  tensors[2][0] = -kInf;
  tensors[3][4500] = 65519.0f;  // rounds to the largest binary16
  tensors[4][4500] = -65520.0f;
  tensors[5] = {};
  std::vector<std::uint16_t> buffer(6 * 9001);
  std::vector<CopySegment> segments;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    segments.push_back({tensors[i].data(), buffer.data() + i * 9001, tensors[i].size()});
  }
  std::vector<CopyReport> reports(6);
  kTwin(pack_to(WireFormat::kFloat16, true), segments, reports.data());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(i == 1, reports[i].nan != 0) << i;
    EXPECT_EQ(i == 2, reports[i].infinite != 0) << i;
    EXPECT_EQ(i == 4, reports[i].overflow != 0) << i;
  }
}

/// Address of byte `at` in a space that nobody touches.
void* address(std::uint64_t at) { return reinterpret_cast<void*>(std::uintptr_t{1} << 40 | at); }

const CopyKernel& kernel_for(const CopyJob& job, const CopySegment& segment) {
  return copy_kernels()[choose_copy_kernel(job, &segment, 1)];
}

TEST(BatchCopyPlanTest, ChunksFollowEachOtherAndHeadsAlign) {
  const CopyJob job = pack_to(WireFormat::kBFloat16);
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

TEST(BatchCopyPlanTest, MoreThanTwoGibibytesButNoMoreThanTheChunksOfABatch) {
  const std::uint64_t bytes = (std::uint64_t{5} << 30) + 12;
  const CopyJob raw;
  const CopySegment segment{address(4), address((std::uint64_t{1} << 39) + 4), bytes / 4};
  const CopyKernel& kernel = kernel_for(raw, segment);
  EXPECT_STREQ("aiacc_copy_raw4", kernel.name);
  SmallCopyBatch batch;
  plan_copies(kernel, raw, &segment, 1, nullptr, batch);
  EXPECT_EQ(bytes / 4, batch.item[0].count);
  EXPECT_EQ(3u, batch.item[0].head);
  EXPECT_EQ((std::uint64_t{5} << 30) / 16384, batch.chunks);
  const CopySegment too_large{address(4), address(4), std::uint64_t{1} << 46};
  EXPECT_THROW(plan_copies(kernel, raw, &too_large, 1, nullptr, batch), Error);
}

TEST(BatchCopyPlanTest, ChoosesTheKernel) {
  const auto name = [](const CopyJob& job, std::uint64_t in, std::uint64_t out) {
    return std::string(kernel_for(job, {address(in), address(out), 8}).name);
  };
  CopyJob job = {DataType::kFloat64};
  EXPECT_EQ("aiacc_copy_raw8", name(job, 8, 16));
  EXPECT_EQ("aiacc_copy_raw4", name(job, 8, 4));
  EXPECT_EQ("aiacc_copy_raw1", name(job, 3, 8));
  job.check = true;
  EXPECT_EQ("aiacc_copy_float64_float64", name(job, 0, 0));
  EXPECT_THROW(name(job, 4, 0), Error);
  job = {DataType::kFloat32, WireFormat::kFloat8E4M3, CopyDirection::kUnpack};
  EXPECT_EQ("aiacc_copy_float8_e4m3_float32", name(job, 1, 4));
  // A format that the tensor has already narrows nothing.
  job = {DataType::kBFloat16, WireFormat::kBFloat16, CopyDirection::kPack, 1.0, false};
  EXPECT_EQ("aiacc_copy_raw2", name(job, 0, 0));
}

TEST(BatchCopyPlanTest, RefusesWhatItCannotDo) {
  const CopySegment segment{address(0), address(0), 8};
  const CopyJob narrowed = {DataType::kInt32, WireFormat::kFloat16};
  const CopyJob checked = {DataType::kInt32, WireFormat::kTensor, CopyDirection::kPack, 1.0, true};
  for (const CopyJob& job : {narrowed, checked}) {
    expect_error(
        status_of([&] { choose_copy_kernel(job, &segment, 1); }), Code::kUnsupported, {"int32"});
  }
}

}  // namespace
}  // namespace aiacc
