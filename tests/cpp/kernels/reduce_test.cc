#include "csrc/kernels/reduce.h"

#include <cstdint>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
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

}  // namespace
}  // namespace aiacc
