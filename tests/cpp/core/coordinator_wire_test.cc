// Tensors in host memory that travel as 16-bit floats: the same bits on all ranks, half the bytes.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/kernels/half.h"
#include "tests/cpp/core/execution/coded_steps.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

class CoordinatorWireTest : public CoordinatorSuite {};

Request narrow_request(const std::string& name, std::int64_t count, WireFormat wire) {
  Request request = make_request(name, {count});
  request.wire = wire;
  return request;
}

float rounded(float value, WireFormat wire) {
  return wire == WireFormat::kFloat16 ? half_to_float(float_to_half(value))
                                      : bfloat16_to_float(float_to_bfloat16(value));
}

/// Sums of several ranks are rounded on their way, in an order that no rank may see differently.
TEST_P(CoordinatorWireTest, AllRanksHaveTheSameBitsRoundedFromTheirInputs) {
  const auto given = [](int rank, std::size_t i) {
    return std::sin(static_cast<float>(i)) * static_cast<float>(rank + 1) / 3;
  };
  constexpr std::size_t kCount = 9000;
  for (const WireFormat wire : {WireFormat::kFloat16, WireFormat::kBFloat16}) {
    std::vector<std::vector<float>> results(static_cast<std::size_t>(size()));
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      std::vector<float>& mine = results[static_cast<std::size_t>(rank)];
      mine.resize(kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        mine[i] = given(rank, i);
      }
      Request request = narrow_request("x", kCount, wire);
      request.op = ReduceOp::kAverage;
      finish(*parts.coordinator, submit(*parts.coordinator, request, mine.data(), mine.data()));
    });
    for (const std::vector<float>& result : results) {
      ASSERT_EQ(bits_of(results[0]), bits_of(result));
    }
    const float epsilon = wire == WireFormat::kFloat16 ? 0x1p-10F : 0x1p-7F;
    for (std::size_t i = 0; i < kCount; ++i) {
      float exact = 0;
      float magnitude = 0;
      for (int r = 0; r < size(); ++r) {
        exact += size() == 1 ? given(r, i) : rounded(given(r, i), wire);
        magnitude += std::abs(given(r, i));
      }
      const auto ranks = static_cast<float>(size());
      if (size() == 1) {
        ASSERT_EQ(exact, results[0][i]) << "nothing travels";
      } else if (size() == 2) {
        ASSERT_EQ(rounded(exact, wire) / 2, results[0][i]);
      }
      ASSERT_NEAR(exact / ranks, results[0][i], epsilon * magnitude) << i;
    }
  }
}

TEST_P(CoordinatorWireTest, HalfTheBytesTravelInHalfTheUnits) {
  if (size() < 2) {
    GTEST_SKIP() << "needs two ranks";
  }
  world_.options.parameters.unit_bytes = 256 << 10;
  with_coordinators(world_, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::vector<float> values(std::size_t{1} << 20, 1.0F);
    const auto moved = [&](WireFormat wire) {
      const CoordinatorStats before = coordinator.stats();
      const auto count = static_cast<std::int64_t>(values.size());
      const Request request = narrow_request("x", count, wire);
      finish(coordinator, submit(coordinator, request, values.data(), values.data()));
      const CoordinatorStats after = coordinator.stats();
      return std::pair{after.data_bytes - before.data_bytes, after.units - before.units};
    };
    EXPECT_EQ((std::pair<std::uint64_t, std::uint64_t>{4 << 20, 16}), moved(WireFormat::kTensor));
    EXPECT_EQ((std::pair<std::uint64_t, std::uint64_t>{2 << 20, 8}), moved(WireFormat::kBFloat16));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorWireTest,
                         testing::Values(WorldSetting{1, Transport::kInProcess},
                                         WorldSetting{2, Transport::kInProcess},
                                         WorldSetting{1, Transport::kTcp},
                                         WorldSetting{2, Transport::kTcp},
                                         WorldSetting{3, Transport::kTcp},
                                         WorldSetting{4, Transport::kTcp}),
                         setting_name);

}  // namespace
}  // namespace aiacc
