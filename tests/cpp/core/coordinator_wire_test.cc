#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/engines/shm/shm_engine.h"
#include "csrc/kernels/half.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

/// Tensors in host memory that travel as 16-bit floats.
class CoordinatorWireTest : public testing::TestWithParam<WorldSetting> {
 protected:
  CoordinatorWireTest() {
    world_.size = GetParam().size;
    world_.transport = GetParam().transport;
  }
  int size() const { return world_.size; }
  float total() const { return static_cast<float>(size() * (size() + 1)) / 2; }

  CoordinatorWorld world_;
};

constexpr WireFormat kWires[] = {WireFormat::kFloat16, WireFormat::kBFloat16};

Request narrow_request(const std::string& name, std::int64_t count, WireFormat wire) {
  Request request = make_request(name, {count});
  request.wire = wire;
  return request;
}

float rounded(float value, WireFormat wire) {
  return wire == WireFormat::kFloat16 ? half_to_float(float_to_half(value))
                                      : bfloat16_to_float(float_to_bfloat16(value));
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

TEST_P(CoordinatorWireTest, SmallAndLargeTensorsInEveryReduction) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    // Packed, a unit of its own, and several units in all lanes.
    const std::vector<std::int64_t> counts = {1, 30, 7, 1500, 2, 600, 20001, 3};
    for (const WireFormat wire : kWires) {
      for (const ReduceOp op : {ReduceOp::kSum,
                                ReduceOp::kAverage,
                                ReduceOp::kMin,
                                ReduceOp::kMax,
                                ReduceOp::kProduct}) {
        std::vector<std::vector<float>> in;
        std::vector<std::vector<float>> out;
        std::vector<Handle> handles;
        for (std::size_t i = 0; i < counts.size(); ++i) {
          in.emplace_back(static_cast<std::size_t>(counts[i]), static_cast<float>(rank + 1));
          out.emplace_back(static_cast<std::size_t>(counts[i]), -1.0F);
          Request request = narrow_request("w" + std::to_string(i), counts[i], wire);
          request.op = op;
          request.prescale = 0.5;
          request.postscale = 8;
          const bool in_place = i % 2 == 0;
          handles.push_back(
              submit(coordinator, request, in[i].data(), in_place ? in[i].data() : out[i].data()));
        }
        float expected = total() * 4;
        if (op == ReduceOp::kAverage) {
          expected /= static_cast<float>(size());
        } else if (op == ReduceOp::kMin) {
          expected = 4;
        } else if (op == ReduceOp::kMax) {
          expected = 4 * static_cast<float>(size());
        } else if (op == ReduceOp::kProduct) {
          expected = 8;
          for (int r = 1; r <= size(); ++r) {
            expected *= 0.5F * static_cast<float>(r);
          }
        }
        for (std::size_t i = 0; i < counts.size(); ++i) {
          finish(coordinator, handles[i]);
          const std::vector<float>& result = i % 2 == 0 ? in[i] : out[i];
          ASSERT_FLOAT_EQ(expected, result.front()) << name_of(op) << " as " << name_of(wire);
          ASSERT_EQ(counts[i], std::count(result.begin(), result.end(), result.front()));
        }
      }
    }
  });
}

/// Sums of several ranks are rounded on their way, in an order that no rank may see differently.
TEST_P(CoordinatorWireTest, AllRanksHaveTheSameBitsRoundedFromTheirInputs) {
  const auto given = [](int rank, std::size_t i) {
    return std::sin(static_cast<float>(i)) * static_cast<float>(rank + 1) / 3;
  };
  constexpr std::size_t kCount = 9000;
  for (const WireFormat wire : kWires) {
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
    const float epsilon = wire == WireFormat::kFloat16 ? 0x1p-10F : 0x1p-7F;
    for (std::size_t i = 0; i < kCount; ++i) {
      float exact = 0;
      float magnitude = 0;
      for (int r = 0; r < size(); ++r) {
        exact += size() == 1 ? given(r, i) : rounded(given(r, i), wire);
        magnitude += std::abs(given(r, i));
        ASSERT_EQ(bits_of(results[0][i]), bits_of(results[static_cast<std::size_t>(r)][i])) << i;
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

/// Nothing travels there, and float32 in memory is faster than 16 bits.
TEST(SharedMemoryWireTest, TensorsKeepTheirFormat) {
  CoordinatorWorld world;
  world.transport = Transport::kTcp;
  world.make_engine = [](int, EngineContext* context, const std::shared_ptr<FakeHub>&) {
    return std::make_unique<ShmEngine>(*context);
  };
  with_coordinators(world, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (const std::int64_t count : {7, 300'001}) {
      const auto reduced = [&](WireFormat wire) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = std::sin(static_cast<float>(i)) * static_cast<float>(rank + 1) * 1e5F;
        }
        const std::uint64_t before = coordinator.stats().data_bytes;
        const Request request = narrow_request("x", count, wire);
        finish(coordinator, submit(coordinator, request, values.data(), values.data()));
        EXPECT_EQ(coordinator.stats().data_bytes - before, values.size() * sizeof(float));
        return values;
      };
      const std::vector<float> exact = reduced(WireFormat::kTensor);
      for (const WireFormat wire : kWires) {
        EXPECT_EQ(reduced(wire), exact) << name_of(wire);
      }
    }
  });
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

TEST_P(CoordinatorWireTest, GroupsAndProcessSets) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    // One rank alone is set 0 already.
    const std::uint32_t set = size() == 1 ? 0 : coordinator.add_process_set({size() - 1});
    for (const WireFormat wire : kWires) {
      std::vector<float> small(3, static_cast<float>(rank + 1));
      std::vector<float> large(5000, static_cast<float>(rank + 1));
      auto operation = coordinator.acquire();
      operation->request = narrow_request("g", 3, wire);
      operation->request.more = {{DataType::kFloat32, {50, 100}}};
      operation->input = operation->output = small.data();
      operation->more = {{large.data(), large.data(), {}, {}, {}}};
      finish(coordinator, coordinator.submit(std::move(operation)));
      EXPECT_EQ(std::vector<float>(3, total()), small);
      EXPECT_EQ(std::vector<float>(5000, total()), large);
      if (rank == size() - 1) {
        std::vector<float> alone(3000, 1.0F / 3);
        Request request = narrow_request("alone", 3000, wire);
        request.process_set = set;
        finish(coordinator, submit(coordinator, request, alone.data(), alone.data()));
        EXPECT_EQ(std::vector<float>(3000, 1.0F / 3), alone) << "nothing travels";
      }
    }
    coordinator.remove_process_set(set);
  });
}

TEST_P(CoordinatorWireTest, AJoinedRankGivesZeros) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (const WireFormat wire : kWires) {
      if (rank != 0) {
        std::vector<float> large(5000, static_cast<float>(rank));
        auto small = static_cast<float>(rank);
        const Handle a =
            submit(coordinator, narrow_request("a", 5000, wire), large.data(), large.data());
        const Handle b = submit(coordinator, narrow_request("b", 1, wire), &small, &small);
        finish(coordinator, b);
        finish(coordinator, a);
        const float others = total() - static_cast<float>(size());
        EXPECT_EQ(std::vector<float>(5000, others), large);
        EXPECT_EQ(others, small);
      }
      finish(coordinator,
             submit(coordinator, make_request("", OpKind::kJoin, {}), nullptr, nullptr));
    }
  });
}

TEST_P(CoordinatorWireTest, RanksThatDisagreeAreToldSo) {
  if (size() < 2) {
    GTEST_SKIP() << "needs two ranks";
  }
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    float value = 1;
    const WireFormat wire = rank == 1 ? WireFormat::kFloat16 : WireFormat::kTensor;
    const Handle handle = submit(coordinator, narrow_request("x", 1, wire), &value, &value);
    const Status status = status_of([&] { coordinator.wait(handle); });
    EXPECT_EQ(Code::kMismatch, status.code());
    EXPECT_NE(std::string::npos,
              status.message().find("rank 0 submitted wire format tensor, rank 1 submitted wire "
                                    "format float16"))
        << status.message();
    EXPECT_EQ(sum(coordinator, "afterwards", 1), static_cast<float>(size()));
  });
}

TEST(CoordinatorWire, RefusedWhereItIsSubmitted) {
  CoordinatorWorld world;
  world.size = 1;
  with_coordinators(world, [](int, RankParts& parts) {
    float value = 1;
    const auto refusal = [&](const Request& request) {
      const Status status = status_of([&] { submit(*parts.coordinator, request, &value, &value); });
      EXPECT_EQ(Code::kInvalidArgument, status.code());
      return status.message();
    };
    Request request = narrow_request("x", 1, WireFormat::kFloat8E5M2);
    std::string text = refusal(request);
    EXPECT_NE(std::string::npos, text.find("wire format float8_e5m2 in host memory")) << text;
    request.wire = WireFormat::kBFloat16;
    request.op = ReduceOp::kAdasum;
    text = refusal(request);
    EXPECT_NE(std::string::npos, text.find("bfloat16 (expected an all-reduce, and not Adasum)"))
        << text;
    request.op = ReduceOp::kSum;
    request.kind = OpKind::kReducescatter;
    text = refusal(request);
    EXPECT_NE(std::string::npos, text.find("bfloat16 (expected an all-reduce")) << text;
    request.kind = OpKind::kAllreduce;
    request.more = {{DataType::kFloat64, {1}}};
    text = refusal(request);
    EXPECT_NE(std::string::npos, text.find("bfloat16 for float64 (expected float32)")) << text;
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
