#include "csrc/core/execution/host_unit.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/half.h"
#include "csrc/kernels/scale.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/support/fakes/fake_engine.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

constexpr int kSize = 2;

/// Tensors of one kind that travel as one unit on each of two ranks.
template <class T>
struct Packed {
  Request request;
  std::vector<std::vector<T>> inputs;
  std::vector<std::vector<T>> outputs;
  std::vector<std::unique_ptr<Operation>> operations;
  Unit unit;

  Packed(Request base, const std::vector<std::vector<T>>& values, bool in_place)
      : request(std::move(base)), inputs(values), outputs(values.size()) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      outputs[i].resize(inputs[i].size());
      auto operation = std::make_unique<Operation>();
      operation->request = request;
      operation->request.shape = {static_cast<std::int64_t>(inputs[i].size())};
      operation->input = inputs[i].data();
      operation->output = in_place ? inputs[i].data() : outputs[i].data();
      const std::uint64_t bytes = inputs[i].size() * sizeof(T);
      unit.plan.slices.push_back({static_cast<std::uint32_t>(i), 0, bytes});
      unit.plan.bytes += bytes;
      unit.pieces.push_back({operation.get(), 0});
      operations.push_back(std::move(operation));
    }
    if (in_place) {
      outputs.clear();
    }
  }
  const std::vector<std::vector<T>>& results() const { return outputs.empty() ? inputs : outputs; }
};

/// What rank `rank` of `ranks` runs a unit with.
void execute(Unit& unit, Engine& engine, int rank, std::vector<int> ranks) {
  auto communicator = std::make_shared<Communicator>();
  communicator->ranks = std::move(ranks);
  communicator->rank = rank;
  communicator->engine = &engine;
  unit.communicator = communicator;
  PackBuffer buffer;
  execute_unit(unit, 0, buffer);
}

/// `body(rank, engine)` on two ranks.
template <class Body>
void with_two_ranks(Body body) {
  const auto hub = std::make_shared<FakeHub>(kSize, 1);
  run_as_ranks(kSize, [&](int rank, RankThreads& rank_threads) {
    FakeEngine engine(hub, rank);
    const auto guard = rank_threads.on_failure([&](const Status& status) { engine.abort(status); });
    body(rank, engine);
  });
}

/// Both ranks run the same unit; `values(rank)` are their tensors. Returns rank 1's results.
template <class T, class Values>
std::vector<std::vector<T>> run(const Request& request, bool in_place, Values values) {
  std::vector<std::vector<T>> results;
  with_two_ranks([&](int rank, Engine& engine) {
    Packed<T> packed(request, values(rank), in_place);
    execute(packed.unit, engine, rank, {0, 1});
    if (rank == 1) {
      results = packed.results();
    }
  });
  return results;
}

TEST(ExecuteUnit, SumsAndAveragesWithScalesPackedOrNotInPlaceOrNot) {
  Request request = make_request("x");
  request.prescale = 2;
  request.postscale = 0.5;
  using Tensors = std::vector<std::vector<double>>;
  for (const bool averages : {false, true}) {
    for (const bool in_place : {false, true}) {
      for (const bool packed : {false, true}) {
        request.dtype = DataType::kFloat64;
        request.op = averages ? ReduceOp::kAverage : ReduceOp::kSum;
        const auto results = run<double>(request, in_place, [&](int rank) {
          const double base = (rank + 1) * (averages ? 2 : 1);
          return packed ? Tensors{{base, 2 * base}, {10 * base}} : Tensors{{base, 2 * base}};
        });
        EXPECT_EQ(results, packed ? (Tensors{{3, 6}, {30}}) : (Tensors{{3, 6}}));
      }
    }
  }
}

class UnitOnTheWire : public testing::TestWithParam<WireFormat> {
 protected:
  static Request wire_request(ReduceOp op) {
    Request request = make_request("x");
    request.op = op;
    request.wire = GetParam();
    return request;
  }
  static float rounded(float value) {
    switch (GetParam()) {
      case WireFormat::kFloat16:
        return half_to_float(float_to_half(value));
      case WireFormat::kBFloat16:
        return bfloat16_to_float(float_to_bfloat16(value));
      default:
        return value;
    }
  }
};

TEST_P(UnitOnTheWire, CombinesWhatWasRoundedAndScalesInFloat32) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    Request request = wire_request(op);
    request.prescale = 3;
    request.postscale = 1.1;
    for (const bool in_place : {false, true}) {
      for (const std::size_t tensors : {std::size_t{1}, std::size_t{3}}) {
        const auto value = [](int rank, std::size_t tensor, std::size_t i) {
          return std::sin(static_cast<float>(1000 * tensor + i)) * static_cast<float>(rank + 1);
        };
        const auto results = run<float>(request, in_place, [&](int rank) {
          std::vector<std::vector<float>> values;
          for (std::size_t t = 0; t < tensors; ++t) {
            values.emplace_back(601 + t);
            for (std::size_t i = 0; i < values.back().size(); ++i) {
              values.back()[i] = value(rank, t, i);
            }
          }
          return values;
        });
        const double after = op == ReduceOp::kAverage ? 1.1 / kSize : 1.1;
        for (std::size_t t = 0; t < tensors; ++t) {
          ASSERT_EQ(601 + t, results[t].size());
          for (std::size_t i = 0; i < results[t].size(); ++i) {
            const float a = rounded(3 * value(0, t, i));
            const float b = rounded(3 * value(1, t, i));
            const ReduceOp combined = op == ReduceOp::kAverage ? ReduceOp::kSum : op;
            const float both = rounded(combine_plainly(a, b, combined));
            ASSERT_EQ(both * static_cast<float>(after), results[t][i])
                << name_of(op) << ", tensor " << t << ", element " << i;
          }
        }
      }
    }
  }
}

/// Of one rank, too.
TEST_P(UnitOnTheWire, InputsOutsideOfTheOutputStayAsTheyWere) {
  FakeEngine engine(std::make_shared<FakeHub>(1, 1), 0);
  Request request = wire_request(ReduceOp::kSum);
  request.prescale = 3;
  for (const std::vector<std::vector<float>>& values :
       {std::vector<std::vector<float>>{{1.001F, 2}}, {{1.001F, 2}, {3}}}) {
    Packed<float> packed(request, values, false);
    execute(packed.unit, engine, 0, {0});
    EXPECT_EQ(packed.inputs, values);
    EXPECT_EQ(packed.outputs[0], (std::vector<float>{rounded(3 * 1.001F), 6}));
  }
}

TEST_P(UnitOnTheWire, WorksOnPartsOfATensor) {
  std::size_t moved = 0;
  FakeEngine engine(
      std::make_shared<FakeHub>(1, 1), 0, [&](int, std::size_t bytes) { moved = bytes; });
  std::vector<float> values(256);
  std::iota(values.begin(), values.end(), 0.0F);
  Request request = wire_request(ReduceOp::kSum);
  request.postscale = 2;
  Packed<float> packed(request, {values}, true);
  packed.unit.plan.slices = {{0, 256, 512}};
  packed.unit.plan.bytes = 512;
  execute(packed.unit, engine, 0, {0});
  EXPECT_EQ(128 * size_on_wire(DataType::kFloat32, GetParam()), moved);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float factor = i >= 64 && i < 192 ? 2.0F : 1.0F;
    ASSERT_EQ(packed.inputs[0][i], factor * values[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         UnitOnTheWire,
                         testing::Values(WireFormat::kTensor,
                                         WireFormat::kFloat16,
                                         WireFormat::kBFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(ExecuteUnit, AveragesOfIntegersAreExactWhenTheyCanBe) {
  for (int size = 1; size <= 64; ++size) {
    const double factor = average_factor(DataType::kInt64, size, 3.0);
    for (std::int64_t average = -1000; average <= 1000; ++average) {
      const std::int64_t sum = average * size;
      std::int64_t tripled = 0;
      scale(&tripled, &sum, 1, DataType::kInt64, factor);
      ASSERT_EQ(3 * average, tripled) << size;
    }
  }
  EXPECT_EQ(average_factor(DataType::kFloat32, 4, 1.0), 0.25);
}

/// What two ranks give sums up to the largest number of the type.
template <class T>
void expect_exact_averages(DataType dtype) {
  Request request = make_request("x");
  request.op = ReduceOp::kAverage;
  request.dtype = dtype;
  using Limits = std::numeric_limits<T>;
  const auto half = static_cast<T>(Limits::max() / 2);
  const auto averages = run<T>(request, true, [half](int rank) {
    return std::vector<std::vector<T>>{
        {half, static_cast<T>(half - rank)},
        {static_cast<T>(Limits::min() / 2), static_cast<T>(half - 3 * rank)}};
  });
  const std::vector<std::vector<T>> expected = {
      {half, static_cast<T>(half - 1)},
      {static_cast<T>(Limits::min() / 2), static_cast<T>(half - 2)}};
  EXPECT_EQ(expected, averages) << name_of(dtype);
}

TEST(ExecuteUnit, AveragesOfIntegersHoldUpToTheirLimits) {
  expect_exact_averages<std::uint8_t>(DataType::kUInt8);
  expect_exact_averages<std::int8_t>(DataType::kInt8);
  expect_exact_averages<std::uint16_t>(DataType::kUInt16);
  expect_exact_averages<std::int16_t>(DataType::kInt16);
  expect_exact_averages<std::int32_t>(DataType::kInt32);
  expect_exact_averages<std::uint32_t>(DataType::kUInt32);
  expect_exact_averages<std::int64_t>(DataType::kInt64);
  expect_exact_averages<std::uint64_t>(DataType::kUInt64);
}

TEST(ExecuteUnit, BroadcastsFromEitherRootPackedOrNot) {
  for (const int root : {0, 1}) {
    for (const bool in_place : {false, true}) {
      for (const std::size_t tensors : {std::size_t{1}, std::size_t{3}}) {
        Request request = make_request("x", OpKind::kBroadcast, {});
        request.root = root;
        const auto results = run<float>(request, in_place, [&](int rank) {
          return std::vector<std::vector<float>>(tensors, {static_cast<float>(rank + 5), 1});
        });
        for (const auto& result : results) {
          EXPECT_EQ(result, (std::vector<float>{static_cast<float>(root + 5), 1}));
        }
      }
    }
  }
}

TEST(ExecuteUnit, ARootIsAGlobalRank) {
  with_two_ranks([](int index, Engine& engine) {
    Request request = make_request("x", OpKind::kBroadcast, {});
    request.root = 5;
    Packed<float> packed(request, {{static_cast<float>(index)}}, true);
    execute(packed.unit, engine, index, {3, 5});
    EXPECT_EQ(packed.inputs[0][0], 1.0F);
  });
}

TEST(ExecuteUnit, GathersRowsOfDifferentNumbers) {
  with_two_ranks([](int rank, Engine& engine) {
    const std::vector<std::uint8_t> mine(rank == 0 ? 6 : 2, static_cast<std::uint8_t>(rank + 1));
    Operation operation;
    operation.request = make_request("x", OpKind::kAllgather, {rank == 0 ? 3 : 1, 2});
    operation.request.dtype = DataType::kUInt8;
    operation.input = mine.data();
    operation.first_extents = {3, 1};
    Unit unit;
    unit.plan.slices = {{0, 0, 8}};
    unit.plan.bytes = 8;
    unit.pieces = {{&operation, 0}};
    execute(unit, engine, rank, {0, 1});
    EXPECT_EQ(operation.gathered, (RawBytes{1, 1, 1, 1, 1, 1, 2, 2}));
  });
}

}  // namespace
}  // namespace aiacc
