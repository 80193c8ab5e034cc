// Reductions and scaling of every dtype, on every vector level, at every address.

#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/reduce.h"
#include "csrc/kernels/scale.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"

namespace aiacc {
namespace {

class ReduceTest
    : public testing::TestWithParam<std::tuple<const VectorLevel*, DataType, ReduceOp>> {
 protected:
  /// NaN and infinity are among the elements, on either side.
  template <class T>
  static void check(const std::vector<T>& a, const std::vector<T>& b, std::size_t offset) {
    const auto [level, dtype, op] = GetParam();
    for (const bool in_place : {false, true}) {
      Placed left(a, offset);
      Placed right(b, offset / 2);
      Placed out(a.size() * sizeof(T), offset);
      Placed& result = in_place ? left : out;
      level->reduce_into(result.data(), left.data(), right.data(), a.size(), dtype, op);
      ASSERT_TRUE(result.intact()) << a.size();
      const std::vector<T> got = result.values<T>();
      for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_TRUE(same(combine_plainly(a[i], b[i], op), got[i]))
            << "element " << i << " of " << a.size() << ", offset " << offset;
      }
    }
  }
};

TEST_P(ReduceTest, EqualsThePlainReferenceForEveryPatternOf16Bits) {
  visit_dtype(std::get<1>(GetParam()), [](auto element) {
    using T = decltype(element);
    for (std::size_t count = 0; count <= 70; ++count) {
      check(any_elements<T>(count, 1), any_elements<T>(count, 2), count % 5);
    }
    for (const std::size_t count : {127, 255, 511, 512, 513, 1024, 5003}) {
      for (const std::size_t offset : {0, 1, 2, 3, 8, 17}) {
        check(any_elements<T>(count, 1), any_elements<T>(count, 2), offset);
      }
    }
    if constexpr (kIs16Bit<T>) {  // the random patterns above cover the others
      std::vector<T> a(65536);
      std::vector<T> b(65536);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        a[i].bits = static_cast<std::uint16_t>(i);
        b[i].bits = static_cast<std::uint16_t>(i * 40503u + 12345u);
      }
      check(a, b, 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All,
                         ReduceTest,
                         testing::Combine(every_level(),
                                          testing::ValuesIn(all_dtypes()),
                                          testing::ValuesIn(engine_ops())),
                         NameOfCase());

TEST(ReduceApiTest, AccumulatesIntoTheFirst) {
  std::vector<float> acc = {1, 2, 3};
  const std::vector<float> in = {10, 20, 30};
  reduce(acc.data(), in.data(), acc.size(), DataType::kFloat32, ReduceOp::kSum);
  EXPECT_EQ((std::vector<float>{11, 22, 33}), acc);
}

TEST(ReduceApiTest, RefusesWhatTheCoreMustResolve) {
  float a = 1;
  const float b = 2;
  EXPECT_THROW(reduce(&a, &b, 1, DataType::kFloat32, ReduceOp::kAverage), Error);
  EXPECT_THROW(reduce(&a, &b, 1, DataType::kFloat32, ReduceOp::kAdasum), Error);
}

template <class T>
T scale_plainly(T value, double factor) {
  if constexpr (kIs16Bit<T>) {
    return T::from(times(static_cast<float>(value), factor));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<std::uint8_t>(value.bits != 0 && std::trunc(factor) != 0)};
  } else if constexpr (std::is_floating_point_v<T>) {
    return times(value, factor);
  } else if (factor == 0.5 || factor == 1.0 / 3 || factor == 1.0 / 7) {
    using Long = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    return static_cast<T>(Long{value} / static_cast<Long>(std::lround(1.0 / factor)));
  } else {
    const double exact = std::trunc(static_cast<double>(value) * factor);
    if (exact >= static_cast<double>(std::numeric_limits<T>::max())) {
      return std::numeric_limits<T>::max();
    }
    if (exact <= static_cast<double>(std::numeric_limits<T>::min())) {
      return std::numeric_limits<T>::min();
    }
    return static_cast<T>(exact);
  }
}

class ScaleTest : public testing::TestWithParam<std::tuple<const VectorLevel*, DataType>> {};

TEST_P(ScaleTest, EqualsThePlainReference) {
  const auto [level, dtype] = GetParam();
  visit_dtype(dtype, [level = level, dtype = dtype](auto element) {
    using T = decltype(element);
    for (const double factor : {1.0, 0.5, 1.0 / 3, 1.0 / 7, 0.3, -2.0, 1e6, 0.0, 1e-300}) {
      for (const std::size_t count : {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 511, 513, 3001}) {
        for (const std::size_t offset : {0, 1, 5}) {
          const std::vector<T> in = any_elements<T>(count, 7);
          Placed source(in, offset);
          Placed out(count * sizeof(T), offset);
          level->scale(out.data(), source.data(), count, dtype, factor);
          level->scale(source.data(), source.data(), count, dtype, factor);
          const std::vector<T> got = out.values<T>();
          const std::vector<T> in_place = source.values<T>();
          for (std::size_t i = 0; i < count; ++i) {
            const T expected = scale_plainly(in[i], factor);
            ASSERT_TRUE(same(expected, got[i])) << "element " << i << " times " << factor;
            ASSERT_TRUE(same(expected, in_place[i])) << "element " << i << " times " << factor;
          }
          ASSERT_TRUE(out.intact() && source.intact());
        }
      }
    }
  });
}

/// Quotients of the largest numbers, and of those that a double does not hold.
TEST_P(ScaleTest, ReciprocalsDivideIntegersExactly) {
  const auto [level, dtype] = GetParam();
  visit_dtype(dtype, [level = level, dtype = dtype](auto element) {
    using T = decltype(element);
    if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      using Long = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
      for (const int divisor : {2, 3, 4, 5, 7, 8, 49, 64, 1000, 1 << 20}) {
        std::vector<T> values;
        for (int step = 0; step < 100; ++step) {
          values.push_back(static_cast<T>(Limits::max() - step));
          values.push_back(static_cast<T>(Limits::min() + step));
          values.push_back(static_cast<T>((std::int64_t{1} << 53) + step));
          values.push_back(static_cast<T>(static_cast<std::int64_t>(step - 50) * divisor));
        }
        std::vector<T> got(values.size());
        level->scale(got.data(), values.data(), values.size(), dtype, 1.0 / divisor);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(Long{values[i]} / static_cast<Long>(divisor), Long{got[i]})
              << +values[i] << " by " << divisor;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All,
                         ScaleTest,
                         testing::Combine(every_level(), testing::ValuesIn(all_dtypes())),
                         NameOfCase());

TEST(ScaleApiTest, IntegersAndNanFactor) {
  std::vector<std::int32_t> values = {3, -3};
  scale(values.data(), values.data(), values.size(), DataType::kInt32, NAN);
  EXPECT_EQ((std::vector<std::int32_t>{0, 0}), values);
}

}  // namespace
}  // namespace aiacc
