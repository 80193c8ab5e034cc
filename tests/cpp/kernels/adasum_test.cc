#include "csrc/kernels/adasum.h"

#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/half.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

template <class T>
std::vector<T> adaptive_sum(const std::vector<T>& a, const std::vector<T>& b, DataType dtype) {
  std::vector<T> out(a.size());
  const PairProducts products = pair_products(a.data(), b.data(), a.size(), dtype);
  combine_adasum(out.data(), a.data(), b.data(), a.size(), dtype, products);
  return out;
}

TEST(AdasumKernelTest, ProductsOfEveryLength) {
  for (std::size_t count = 0; count < 40; ++count) {
    std::vector<float> a(count, 2.0F);
    std::vector<float> b(count, 3.0F);
    if (count > 0) {
      a.back() = -5.0F;
    }
    const PairProducts products = pair_products(a.data(), b.data(), count, DataType::kFloat32);
    const double equal = count > 0 ? static_cast<double>(count) - 1 : 0;
    const double last = count > 0 ? 1 : 0;
    EXPECT_EQ(6 * equal - 15 * last, products.ab);
    EXPECT_EQ(4 * equal + 25 * last, products.aa);
    EXPECT_EQ(9.0 * static_cast<double>(count), products.bb);
  }
}

using Vector = std::vector<double>;

TEST(AdasumKernelTest, AddsWhatIsOrthogonalAveragesWhatIsParallelAndWeighsWhatIsBetween) {
  const struct {
    Vector a, b, sum;
  } rows[] = {
      {{1, 0}, {0, 2}, {1, 2}},
      {{1, 2}, {3, 6}, {2, 4}},
      {{1, 2}, {0, 0}, {1, 2}},
      {{0, 0}, {1, 2}, {1, 2}},
      // (1 - ab / 2aa) a + (1 - ab / 2bb) b with ab = 1, aa = 1, bb = 2.
      {{1, 0}, {1, 1}, {1.25, 0.75}},
  };
  for (const auto& [a, b, sum] : rows) {
    EXPECT_EQ(sum, adaptive_sum(a, b, DataType::kFloat64));
    const PairProducts products = pair_products(a.data(), b.data(), 2, DataType::kFloat64);
    Vector into = a;
    combine_adasum(into.data(), into.data(), b.data(), 2, DataType::kFloat64, products);
    EXPECT_EQ(sum, into);
    into = b;
    combine_adasum(into.data(), a.data(), into.data(), 2, DataType::kFloat64, products);
    EXPECT_EQ(sum, into);
  }
  EXPECT_EQ((std::vector<float>{1.25F, 0.75F}),
            adaptive_sum<float>({1, 0}, {1, 1}, DataType::kFloat32));
}

TEST(AdasumKernelTest, KnowsSixteenBits) {
  const auto check = [](DataType dtype, auto narrow, auto widen) {
    const auto sum = adaptive_sum<std::uint16_t>(
        {narrow(1.0f), narrow(0.0f)}, {narrow(1.0f), narrow(1.0f)}, dtype);
    EXPECT_EQ(1.25f, widen(sum[0]));
    EXPECT_EQ(0.75f, widen(sum[1]));
  };
  check(DataType::kFloat16, float_to_half, half_to_float);
  check(DataType::kBFloat16, float_to_bfloat16, bfloat16_to_float);
}

TEST(AdasumKernelTest, RefusesIntegers) {
  expect_error(status_of([] { pair_products(nullptr, nullptr, 0, DataType::kInt32); }),
               Code::kInvalidArgument,
               {"int32"});
}

}  // namespace
}  // namespace aiacc
