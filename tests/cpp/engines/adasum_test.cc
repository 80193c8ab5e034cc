#include "csrc/engines/adasum.h"

#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

using Vector = std::vector<double>;

/// Of rank `rank`: values that all types hold exactly.
Vector gradient(std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  Vector values(count);
  for (double& value : values) {
    value = (static_cast<double>(random() % 16) - 6) / 8;
  }
  return values;
}

/// The definition, for one tensor.
Vector combined(const Vector& a, const Vector& b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  Vector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum[i] = (aa > 0 ? 1 - ab / (2 * aa) : 1) * a[i] + (bb > 0 ? 1 - ab / (2 * bb) : 1) * b[i];
  }
  return sum;
}

/// Of the ranks from `first` on: a tree of pairs, tensor by tensor.
Vector tree(const std::vector<std::size_t>& counts, int first, int size) {
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  if (size == 1) {
    return gradient(total, first);
  }
  const Vector a = tree(counts, first, size / 2);
  const Vector b = tree(counts, first + size / 2, size / 2);
  Vector result;
  auto from = std::ptrdiff_t{0};
  for (const std::size_t count : counts) {
    const auto to = from + static_cast<std::ptrdiff_t>(count);
    const Vector part = combined(Vector(a.begin() + from, a.begin() + to),
                                 Vector(b.begin() + from, b.begin() + to));
    result.insert(result.end(), part.begin(), part.end());
    from = to;
  }
  return result;
}

template <class T>
void check_adasum(int size,
                  const std::vector<std::size_t>& counts,
                  DataType dtype,
                  double tolerance) {
  const Vector expected = tree(counts, 0, size);
  std::vector<std::vector<T>> results(static_cast<std::size_t>(size));
  with_engines(tcp_ranks(size), [&](int rank, Engine& engine) {
    std::vector<T> input;
    for (const double value : gradient(expected.size(), rank)) {
      input.push_back(element_of<T>(value));
    }
    for (const int lane : {0, engine.express_lane()}) {
      std::vector<T> out(input.size());
      adasum(engine, lane, input.data(), out.data(), counts, dtype, rank, size);
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(expected[i], number_of(out[i]), tolerance) << "element " << i;
      }
      results[static_cast<std::size_t>(rank)] = out;
      std::vector<T> in_place = input;
      adasum(engine, lane, in_place.data(), in_place.data(), counts, dtype, rank, size);
      expect_equal_bits(out, in_place, "in place");
    }
  });
  for (const std::vector<T>& result : results) {
    expect_equal_bits(results[0], result, "on another rank");
  }
}

class AdasumTest : public testing::TestWithParam<int> {};

TEST_P(AdasumTest, IsATreeOfPairsForEveryTensor) {
  const std::vector<std::vector<std::size_t>> shapes = {
      {1}, {2}, {1000}, {1, 2, 3}, {0, 7, 0}, {5, 4000, 1, 333}, {0}, {}};
  for (const auto& counts : shapes) {
    check_adasum<float>(GetParam(), counts, DataType::kFloat32, 1e-5);
    check_adasum<double>(GetParam(), counts, DataType::kFloat64, 1e-13);
  }
}

TEST_P(AdasumTest, RoundsSixteenBitsAtEveryStep) {
  check_adasum<Half>(GetParam(), {100, 31}, DataType::kFloat16, 0.01);
  check_adasum<BFloat16>(GetParam(), {100, 31}, DataType::kBFloat16, 0.08);
}

INSTANTIATE_TEST_SUITE_P(Sizes, AdasumTest, testing::Values(1, 2, 4, 8));

TEST(AdasumArgumentsTest, OtherNumbersOfRanksAndIntegersAreRefused) {
  for (const auto& [size, dtype, text] :
       {std::tuple(3, DataType::kFloat32, "3 ranks"), std::tuple(2, DataType::kInt32, "")}) {
    with_engines(
        tcp_ranks(size), [&, ranks = size, type = dtype, part = text](int rank, Engine& engine) {
          float value = 1;
          const Status status =
              status_of([&] { adasum(engine, 0, &value, &value, {1}, type, rank, ranks); });
          expect_error(status, Code::kInvalidArgument, {part});
          // Nothing was sent, so the lane still works.
          check_all_reduce(engine, 0, rank, ranks, 10, DataType::kFloat32, ReduceOp::kSum);
        });
  }
}

}  // namespace
}  // namespace aiacc
