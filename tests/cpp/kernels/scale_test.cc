#include "csrc/kernels/scale.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "csrc/kernels/vector/level.h"
#include "tests/cpp/kernels/elements.h"

namespace aiacc {
namespace {

/// Times `factor`; divided by 3 or 7 where it is the reciprocal of those.
template <class Float>
Float times(Float value, double factor) {
  for (const int divisor : {3, 7}) {
    if (factor == 1.0 / divisor) {
      return value / static_cast<Float>(divisor);
    }
  }
  return value * static_cast<Float>(factor);
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
          const std::size_t bytes = count * sizeof(T);
          std::vector<unsigned char> source(bytes + offset + 1, 0x5a);
          std::copy_n(
              reinterpret_cast<const unsigned char*>(in.data()), bytes, source.data() + offset);
          std::vector<unsigned char> out(bytes + offset + 1, 0x5a);
          level->scale(out.data() + offset, source.data() + offset, count, dtype, factor);
          level->scale(source.data() + offset, source.data() + offset, count, dtype, factor);
          for (std::size_t i = 0; i < count; ++i) {
            T got;
            T in_place;
            std::memcpy(&got, out.data() + offset + i * sizeof(T), sizeof got);
            std::memcpy(&in_place, source.data() + offset + i * sizeof(T), sizeof in_place);
            const T expected = scale_plainly(in[i], factor);
            ASSERT_TRUE(same(expected, got)) << "element " << i << " times " << factor;
            ASSERT_TRUE(same(expected, in_place)) << "element " << i << " times " << factor;
          }
          ASSERT_EQ(0x5a, out.back());
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
                         testing::Combine(testing::ValuesIn(runnable_vector_levels()),
                                          testing::ValuesIn(all_dtypes())),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)->name) + "_" +
                                  name_of(std::get<1>(test.param));
                         });

TEST(ScaleApiTest, IntegersTruncateTowardZero) {
  // Horovod's average over two ranks of [1,2,3] and [2,4,6].
  std::vector<std::int32_t> sums = {3, 6, 9, -3};
  scale(sums.data(), sums.data(), sums.size(), DataType::kInt32, 0.5);
  EXPECT_EQ((std::vector<std::int32_t>{1, 3, 4, -1}), sums);
}

TEST(ScaleApiTest, IntegersAndNanFactor) {
  std::vector<std::int32_t> values = {3, -3};
  scale(values.data(), values.data(), values.size(), DataType::kInt32, NAN);
  EXPECT_EQ((std::vector<std::int32_t>{0, 0}), values);
}

}  // namespace
}  // namespace aiacc
