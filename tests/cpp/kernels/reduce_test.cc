#include "csrc/kernels/reduce.h"

#include <algorithm>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/vector/level.h"
#include "tests/cpp/kernels/elements.h"

namespace aiacc {
namespace {

constexpr unsigned char kGuard = 0xa5;

/// Bytes at a chosen misalignment with guards on both sides.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t offset)
      : bytes_(bytes), start_(64 + offset), storage_(start_ + bytes + 64, kGuard) {}
  unsigned char* data() { return storage_.data() + start_; }
  bool intact() const {
    const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
    const auto begin = storage_.begin();
    const auto start = static_cast<std::ptrdiff_t>(start_);
    return std::all_of(begin, begin + start, is_guard) &&
           std::all_of(
               begin + start + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), is_guard);
  }

 private:
  std::size_t bytes_;
  std::size_t start_;
  std::vector<unsigned char> storage_;
};

using Case = std::tuple<const VectorLevel*, DataType, ReduceOp>;

class ReduceTest : public testing::TestWithParam<Case> {
 protected:
  template <class T>
  static void check(std::size_t count, std::size_t offset, bool in_place) {
    const auto [level, dtype, op] = GetParam();
    const std::vector<T> a = any_elements<T>(count, 1);
    const std::vector<T> b = any_elements<T>(count, 2);
    const std::size_t bytes = count * sizeof(T);
    Guarded left(bytes, offset);
    Guarded right(bytes, offset / 2);
    Guarded out(bytes, offset);
    std::copy_n(reinterpret_cast<const unsigned char*>(a.data()), bytes, left.data());
    std::copy_n(reinterpret_cast<const unsigned char*>(b.data()), bytes, right.data());
    Guarded& result = in_place ? left : out;
    level->reduce_into(result.data(), left.data(), right.data(), count, dtype, op);
    ASSERT_TRUE(result.intact()) << count;
    for (std::size_t i = 0; i < count; ++i) {
      T got;
      std::memcpy(&got, result.data() + i * sizeof(T), sizeof got);
      ASSERT_TRUE(same(combine_plainly(a[i], b[i], op), got))
          << "element " << i << " of " << count << ", offset " << offset;
    }
  }
};

TEST_P(ReduceTest, EqualsThePlainReference) {
  visit_dtype(std::get<1>(GetParam()), [](auto element) {
    using T = decltype(element);
    for (std::size_t count = 0; count <= 70; ++count) {
      check<T>(count, count % 5, count % 2 == 0);
    }
    for (const std::size_t count : {127, 255, 511, 512, 513, 1024, 5003}) {
      for (const std::size_t offset : {0, 1, 2, 3, 8, 17}) {
        check<T>(count, offset, false);
        check<T>(count, offset, true);
      }
    }
  });
}

TEST_P(ReduceTest, EveryPatternOf16Bits) {
  const auto [level, dtype, op] = GetParam();
  if (dtype != DataType::kFloat16 && dtype != DataType::kBFloat16) {
    return;  // the random patterns above cover the others
  }
  visit_dtype(dtype, [level = level, dtype = dtype, op = op](auto element) {
    using T = decltype(element);
    if constexpr (kIs16Bit<T>) {
      std::vector<T> a(65536);
      std::vector<T> b(65536);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        a[i].bits = static_cast<std::uint16_t>(i);
        b[i].bits = static_cast<std::uint16_t>(i * 40503u + 12345u);
      }
      std::vector<T> out(65536);
      level->reduce_into(out.data(), a.data(), b.data(), out.size(), dtype, op);
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_TRUE(same(combine_plainly(a[i], b[i], op), out[i]))
            << std::hex << a[i].bits << " with " << b[i].bits << " gave " << out[i].bits;
      }
    }
  });
}

TEST_P(ReduceTest, NanWins) {
  const auto [level, dtype, op] = GetParam();
  visit_dtype(dtype, [level = level, dtype = dtype, op = op](auto element) {
    using T = decltype(element);
    if constexpr (std::is_floating_point_v<T>) {
      // Long enough for the vector body and the tail, NaN on either side.
      const std::size_t count = 67;
      std::vector<T> numbers(count, T(3));
      std::vector<T> nans(count, T(NAN));
      std::vector<T> out(count);
      level->reduce_into(out.data(), numbers.data(), nans.data(), count, dtype, op);
      EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](T x) { return std::isnan(x); }));
      level->reduce_into(out.data(), nans.data(), numbers.data(), count, dtype, op);
      EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](T x) { return std::isnan(x); }));
    }
  });
}

std::string name_of_case(const testing::TestParamInfo<Case>& test) {
  const auto [level, dtype, op] = test.param;
  return std::string(level->name) + "_" + name_of(dtype) + "_" + name_of(op);
}

INSTANTIATE_TEST_SUITE_P(All,
                         ReduceTest,
                         testing::Combine(testing::ValuesIn(runnable_vector_levels()),
                                          testing::ValuesIn(all_dtypes()),
                                          testing::ValuesIn(engine_ops())),
                         name_of_case);

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

TEST(VectorLevelTest, EndsWithTheBaseline) {
  ASSERT_FALSE(runnable_vector_levels().empty());
  EXPECT_EQ(&kBaselineLevel, runnable_vector_levels().back());
}

}  // namespace
}  // namespace aiacc
