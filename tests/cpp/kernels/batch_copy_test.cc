#include "csrc/kernels/batch_copy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/float8.h"
#include "csrc/kernels/half.h"
#include "csrc/kernels/scale.h"
#include "tests/cpp/kernels/elements.h"

namespace aiacc {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Runs a job as a launch would, with `blocks` blocks.
void run(const CopyJob& job,
         const std::vector<CopySegment>& segments,
         std::uint32_t blocks,
         CopyReport* reports = nullptr) {
  const CopyKernel& kernel =
      copy_kernels()[choose_copy_kernel(job, segments.data(), segments.size())];
  if (segments.size() <= 126) {
    const auto batch = std::make_unique<SmallCopyBatch>();
    plan_copies(kernel, job, segments.data(), segments.size(), reports, *batch);
    kernel.run_small(*batch, blocks);
  } else {
    const auto batch = std::make_unique<LargeCopyBatch>();
    plan_copies(kernel, job, segments.data(), segments.size(), reports, *batch);
    kernel.run_large(*batch, blocks);
  }
}

CopyJob cast_to(WireFormat wire, CopyDirection direction = CopyDirection::kPack) {
  return {DataType::kFloat32, wire, direction, 1.0, false};
}

/// What a job should do to one element that lies at `in`, by other code than the kernels'.
void expect_element(const CopyJob& job, const unsigned char* in, const unsigned char* out) {
  std::vector<unsigned char> wide(8);
  std::memcpy(wide.data(), in, size_of(job.dtype));
  float value = 0;
  if (job.wire == WireFormat::kTensor) {
    copy_scaled(wide.data(), wide.data(), 1, job.dtype, job.factor);
    visit_dtype(job.dtype, [&](auto element) {
      decltype(element) expected;
      decltype(element) got;
      std::memcpy(&expected, wide.data(), sizeof expected);
      std::memcpy(&got, out, sizeof got);
      EXPECT_TRUE(same(expected, got));
    });
    return;
  }
  std::memcpy(&value, in, sizeof value);
  scale(&value, &value, 1, DataType::kFloat32, job.factor);
  std::uint16_t got = 0;
  std::memcpy(&got, out, size_on_wire(job.dtype, job.wire));
  std::uint16_t expected = 0;
  if (job.wire == WireFormat::kFloat16) {
    expected = float_to_half(value);
  } else if (job.wire == WireFormat::kBFloat16) {
    expected = float_to_bfloat16(value);
  } else if (job.wire == WireFormat::kFloat8E4M3) {
    expected = narrow_float8<Float8E4M3>(value).bits;
  } else {
    expected = narrow_float8<Float8E5M2>(value).bits;
  }
  EXPECT_EQ(expected, got) << value;
}

/// Packs tensors of odd sizes and places; every element once, no byte beside them.
void check_pack(const CopyJob& job, std::uint32_t blocks, std::size_t shift) {
  const std::size_t from = size_of(job.dtype);
  const std::size_t to = size_on_wire(job.dtype, job.wire);
  const std::vector<std::size_t> counts = {1, 0, 5000, 17, 0, 16384, 3, 40000, 15, 0};
  std::vector<std::vector<unsigned char>> tensors;
  std::vector<CopySegment> segments;
  std::size_t total = 0;
  for (const std::size_t count : counts) {
    total += count + 1;
  }
  std::vector<unsigned char> buffer(total * to + 64, 0xa5);
  auto* base = reinterpret_cast<unsigned char*>(
      (reinterpret_cast<std::uintptr_t>(buffer.data()) + 15) / 16 * 16);
  std::size_t at = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    visit_dtype(job.dtype, [&](auto element) {
      using T = decltype(element);
      const auto values = any_elements<T>(counts[i] + 2, static_cast<std::uint32_t>(i));
      std::vector<unsigned char> bytes((counts[i] + shift) * from);
      std::copy_n(reinterpret_cast<const unsigned char*>(values.data()),
                  counts[i] * from,
                  bytes.begin() + static_cast<std::ptrdiff_t>(shift * from));
      tensors.push_back(std::move(bytes));
    });
    segments.push_back({tensors.back().data() + shift * from, base + at * to, counts[i]});
    at += counts[i] + 1;  // one element stays free behind every tensor
  }
  run(job, segments, blocks);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto* in = static_cast<const unsigned char*>(segments[i].in);
    const auto* out = static_cast<const unsigned char*>(segments[i].out);
    for (std::size_t e = 0; e < counts[i]; ++e) {
      expect_element(job, in + e * from, out + e * to);
      if (testing::Test::HasFailure()) {
        FAIL() << "tensor " << i << " element " << e << ", " << name_of(job.dtype) << " to "
               << name_of(job.wire) << " times " << job.factor << ", " << blocks << " blocks";
      }
    }
    for (std::size_t b = 0; b < to; ++b) {
      ASSERT_EQ(0xa5, out[counts[i] * to + b]) << "behind tensor " << i;
    }
  }
}

TEST(BatchCopyTest, EveryTypeIsMovedAndScaled) {
  for (const DataType dtype : all_dtypes()) {
    for (const double factor : {1.0, 0.5, 1.0 / 3, -3.0}) {
      for (const std::size_t shift : {0, 1, 3}) {
        check_pack({dtype, WireFormat::kTensor, CopyDirection::kPack, factor, false}, 5, shift);
      }
    }
  }
}

TEST(BatchCopyTest, EveryWireFormat) {
  for (const WireFormat wire : {WireFormat::kFloat16,
                                WireFormat::kBFloat16,
                                WireFormat::kFloat8E4M3,
                                WireFormat::kFloat8E5M2}) {
    for (const double factor : {1.0, 0.25}) {
      for (const std::uint32_t blocks : {1u, 3u, 64u}) {
        check_pack({DataType::kFloat32, wire, CopyDirection::kPack, factor, false}, blocks, 0);
        check_pack({DataType::kFloat32, wire, CopyDirection::kPack, factor, false}, blocks, 1);
      }
    }
  }
}

TEST(BatchCopyTest, AnAverageIsTheNearestNumber) {
  std::mt19937 random(5);
  for (const int ranks : {3, 5, 7, 12, 24, 1000, 65535}) {
    std::vector<float> in(20000);
    for (float& x : in) {
      const std::uint32_t bits = random();
      std::memcpy(&x, &bits, sizeof x);
    }
    std::vector<float> out(in.size());
    run({DataType::kFloat32, WireFormat::kTensor, CopyDirection::kUnpack, 1.0 / ranks, false},
        {{in.data(), out.data(), in.size()}},
        2);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const float expected = in[i] / static_cast<float>(ranks);
      if (std::abs(expected) >= 0x1p-100f || expected == 0 || std::isnan(expected)) {
        ASSERT_TRUE(same(expected, out[i])) << in[i] << " over " << ranks;
      }
    }
    std::vector<double> wide = {1.0, 0.1, 3.0, -1e300, 7e-300, -0.0, 2.0 / 3};
    std::vector<double> average(wide.size());
    run({DataType::kFloat64, WireFormat::kTensor, CopyDirection::kUnpack, 1.0 / ranks, false},
        {{wide.data(), average.data(), wide.size()}},
        1);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      EXPECT_TRUE(same(wide[i] / ranks, average[i])) << wide[i] << " over " << ranks;
    }
  }
}

TEST(BatchCopyTest, UnpackRestoresWhatTheFormatHolds) {
  for (const WireFormat wire : {WireFormat::kFloat16,
                                WireFormat::kBFloat16,
                                WireFormat::kFloat8E4M3,
                                WireFormat::kFloat8E5M2}) {
    std::vector<float> in;
    for (int i = -448; i <= 448; i += 64) {
      in.push_back(static_cast<float>(i));
      in.push_back(0.0f);
      in.push_back(kInf);
    }
    std::vector<unsigned char> packed(in.size() * 2);
    std::vector<float> out(in.size());
    run(cast_to(wire), {{in.data(), packed.data(), in.size()}}, 1);
    CopyJob back = cast_to(wire, CopyDirection::kUnpack);
    back.factor = 0.5;
    run(back, {{packed.data(), out.data(), in.size()}}, 1);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const bool no_infinity = wire == WireFormat::kFloat8E4M3 && std::isinf(in[i]);
      EXPECT_TRUE(same(no_infinity ? kNan : in[i] / 2, out[i])) << name_of(wire) << " " << in[i];
    }
  }
}

TEST(BatchCopyTest, InPlace) {
  std::vector<float> values(5001);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i);
  }
  run({DataType::kFloat32, WireFormat::kTensor, CopyDirection::kPack, 2.0, false},
      {{values.data() + 1, values.data() + 1, 5000}},
      3);
  EXPECT_EQ(0.0f, values[0]);
  for (std::size_t i = 1; i < values.size(); ++i) {
    ASSERT_EQ(2.0f * static_cast<float>(i), values[i]);
  }
}

TEST(BatchCopyTest, HundredsOfTensorsInOneLaunch) {
  std::vector<std::vector<float>> tensors;
  std::vector<CopySegment> segments;
  std::vector<float> buffer(1022 * 300);
  std::size_t at = 0;
  for (std::size_t i = 0; i < 1022; ++i) {
    tensors.emplace_back(i % 300, static_cast<float>(i));
    segments.push_back({tensors.back().data(), buffer.data() + at, i % 300});
    at += i % 300;
  }
  run(cast_to(WireFormat::kTensor), segments, 17);
  at = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    for (std::size_t e = 0; e < i % 300; ++e) {
      ASSERT_EQ(static_cast<float>(i), buffer[at + e]);
    }
    at += i % 300;
  }
}

TEST(BatchCopyTest, TheReportNamesTheTensor) {
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
  CopyJob job = cast_to(WireFormat::kFloat16);
  job.check = true;
  std::vector<CopyReport> reports(6);
  run(job, segments, 4, reports.data());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(i == 1, reports[i].nan != 0) << i;
    EXPECT_EQ(i == 2, reports[i].infinite != 0) << i;
    EXPECT_EQ(i == 4, reports[i].overflow != 0) << i;
  }
}

TEST(BatchCopyTest, OverflowBeginsWhereRoundingNoLongerReachesTheLargest) {
  const auto overflows = [](WireFormat wire, float value) {
    unsigned char out[2];
    CopyReport report;
    CopyJob job = cast_to(wire);
    job.check = true;
    run(job, {{&value, out, 1}}, 1, &report);
    return report.overflow != 0;
  };
  const struct {
    WireFormat wire;
    float first;
  } limits[] = {{WireFormat::kFloat16, 65520.0f},
                {WireFormat::kBFloat16, 0x1.ffp127f},
                {WireFormat::kFloat8E4M3, std::nextafter(464.0f, kInf)},
                {WireFormat::kFloat8E5M2, 61440.0f}};
  for (const auto& [wire, first] : limits) {
    EXPECT_TRUE(overflows(wire, first)) << name_of(wire);
    EXPECT_TRUE(overflows(wire, -first)) << name_of(wire);
    EXPECT_FALSE(overflows(wire, std::nextafter(first, 0.0f))) << name_of(wire);
  }
}

TEST(BatchCopyTest, AScaledDoubleMayOverflow) {
  const double value = 1e308;
  double out = 0;
  CopyReport report;
  run({DataType::kFloat64, WireFormat::kTensor, CopyDirection::kPack, 10.0, true},
      {{&value, &out, 1}},
      1,
      &report);
  EXPECT_EQ(1, report.overflow);
  EXPECT_EQ(0, report.infinite);
}

}  // namespace
}  // namespace aiacc
