// Tensors in host memory that travel as 16-bit floats: the same bits on all ranks, half the bytes.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/kernels/half.h"
#include "tests/cpp/core/execution/coded_steps.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

class CoordinatorWireTest : public CoordinatorSuite {};

float rounded(float value, WireFormat wire) {
  return wire == WireFormat::kTensor    ? value
         : wire == WireFormat::kFloat16 ? half_to_float(float_to_half(value))
                                        : bfloat16_to_float(float_to_bfloat16(value));
}

/// Sums of several ranks are rounded on their way, in an order that no rank may see differently.
TEST_P(CoordinatorWireTest, AllRanksHaveTheSameBitsRoundedFromTheirInputs) {
  const auto given = [](int rank, std::size_t i) {
    return std::sin(static_cast<float>(i)) * static_cast<float>(rank + 1) / 3;
  };
  constexpr std::size_t kCount = 9000;
  std::vector<ReduceOp> ops = engine_ops();
  ops.push_back(ReduceOp::kAverage);
  for (const WireFormat wire : {WireFormat::kTensor, WireFormat::kFloat16, WireFormat::kBFloat16}) {
    const float epsilon = wire == WireFormat::kBFloat16 ? 0x1p-7F : 0x1p-10F;
    for (const ReduceOp op : ops) {
      SCOPED_TRACE(std::string(name_of(op)) + " as " + name_of(wire));
      std::vector<std::vector<float>> results(static_cast<std::size_t>(size()));
      with_coordinators(world_, [&](int rank, RankParts& parts) {
        std::vector<float>& mine = results[static_cast<std::size_t>(rank)];
        mine.resize(kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
          mine[i] = given(rank, i);
        }
        Request request = make_request("x");
        request.wire = wire;
        request.op = op;
        request.prescale = 3;
        request.postscale = 1.1;
        finish(*parts.coordinator, submit(*parts.coordinator, request, mine));
      });
      for (const std::vector<float>& result : results) {
        ASSERT_EQ(bits_of(results[0]), bits_of(result));
      }
      const WireFormat travels = size() == 1 ? WireFormat::kTensor : wire;
      const bool averages = op == ReduceOp::kAverage;
      const auto after = static_cast<float>(averages ? 1.1 / size() : 1.1);
      for (std::size_t i = 0; i < kCount; ++i) {
        float combined = rounded(3 * given(0, i), travels);
        float magnitude = std::abs(combined);
        for (int rank = 1; rank < size(); ++rank) {
          const float value = rounded(3 * given(rank, i), travels);
          combined = combine_plainly(combined, value, averages ? ReduceOp::kSum : op);
          magnitude += std::abs(value);
        }
        if (size() <= 2) {
          ASSERT_EQ(rounded(combined, travels) * after, results[0][i]) << i;
        } else if (op != ReduceOp::kProduct) {
          ASSERT_NEAR(combined * after, results[0][i], epsilon * magnitude) << i;
        }
      }
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
      Request request = make_request("x");
      request.wire = wire;
      finish(coordinator, submit(coordinator, request, values));
      const CoordinatorStats after = coordinator.stats();
      return std::pair{after.data_bytes - before.data_bytes, after.units - before.units};
    };
    EXPECT_EQ((std::pair<std::uint64_t, std::uint64_t>{4 << 20, 16}), moved(WireFormat::kTensor));
    EXPECT_EQ((std::pair<std::uint64_t, std::uint64_t>{2 << 20, 8}), moved(WireFormat::kBFloat16));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorWireTest,
                         worlds({{Transport::kFake, {1, 2}}, {Transport::kTcp, {1, 2, 3, 4}}}),
                         setting_name);

}  // namespace
}  // namespace aiacc
