#include "csrc/kernels/scale.h"

#include <limits>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/placed.h"

namespace aiacc {
namespace {

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

using Case = std::tuple<const VectorLevel*, DataType>;

class ScaleTest : public testing::TestWithParam<Case> {};

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
