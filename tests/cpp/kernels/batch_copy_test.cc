// The kernels that pack and unpack: their bodies on the host, and launched on a GPU in software.
// What they have to give is in copy_check.h.

#include "csrc/kernels/batch_copy.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/copy_check.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"

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

class CopiesTest : public GpuKernelsTest {
 protected:
  /// As many tensors as a large batch takes, and more, of sizes from 0 on.
  static std::vector<std::size_t> many(std::size_t number) {
    std::vector<std::size_t> counts(number);
    for (std::size_t i = 0; i < number; ++i) {
      counts[i] = i % 300;
    }
    return counts;
  }
};

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
  std::vector<float> values(5001);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i);
  }
  kTwin({DataType::kFloat32, WireFormat::kTensor, CopyDirection::kPack, 2.0, false},
        {{values.data() + 1, values.data() + 1, 5000}});
  EXPECT_EQ(0.0f, values[0]);
  for (std::size_t i = 1; i < values.size(); ++i) {
    ASSERT_EQ(2.0f * static_cast<float>(i), values[i]);
  }
}

/// 1500 tensors of one element in two launches.
TEST_F(CopiesTest, ReportsGoToTheirSegments) {
  BatchCopier copier(driver(), image());
  std::vector<float> in(1500, 1.0f);
  in[3] = 1e6f;
  in[1400] = -1e6f;
  std::vector<std::uint16_t> out(in.size());
  std::vector<CopySegment> segments;
  for (std::size_t i = 0; i < in.size(); ++i) {
    segments.push_back({&in[i], &out[i], 1});
  }
  std::vector<CopyReport> reports(in.size());
  copier.enqueue(rig_.stream(), pack_to(WireFormat::kFloat16, true), segments, reports.data());
  cuda_.drain();
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(i == 3 || i == 1400, reports[i].overflow != 0) << i;
  }
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

TEST(CopyTest, OverflowBeginsWhereRoundingNoLongerReachesTheLargest) {
  const auto overflows = [](WireFormat wire, float value) {
    unsigned char out[2];
    CopyReport report;
    kTwin(pack_to(wire, true), {{&value, out, 1}}, &report);
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

TEST(CopyTest, AScaledDoubleMayOverflow) {
  const double value = 1e308;
  double out = 0;
  CopyReport report;
  kTwin({DataType::kFloat64, WireFormat::kTensor, CopyDirection::kPack, 10.0, true},
        {{&value, &out, 1}},
        &report);
  EXPECT_EQ(1, report.overflow);
  EXPECT_EQ(0, report.infinite);
}

}  // namespace
}  // namespace aiacc
