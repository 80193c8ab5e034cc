#include "csrc/kernels/adasum.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

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

TEST(AdasumKernelTest, AddsWhatIsOrthogonalAveragesWhatIsParallelAndWeighsWhatIsBetween) {
  struct Row {
    std::vector<double> a, b, sum;
  };
  const Row rows[] = {
      {{1, 0}, {0, 2}, {1, 2}},
      {{1, 2}, {3, 6}, {2, 4}},
      {{1, 2}, {0, 0}, {1, 2}},
      {{0, 0}, {1, 2}, {1, 2}},
      // (1 - ab / 2aa) a + (1 - ab / 2bb) b with ab = 1, aa = 1, bb = 2.
      {{1, 0}, {1, 1}, {1.25, 0.75}},
  };
  const auto check = [](const Row& row, DataType dtype, auto element) {
    using T = decltype(element);
    const T a[] = {element_of<T>(row.a[0]), element_of<T>(row.a[1])};
    const T b[] = {element_of<T>(row.b[0]), element_of<T>(row.b[1])};
    const PairProducts products = pair_products(a, b, 2, dtype);
    T apart[2];
    T into_a[] = {a[0], a[1]};
    T into_b[] = {b[0], b[1]};
    combine_adasum(apart, a, b, 2, dtype, products);
    combine_adasum(into_a, into_a, b, 2, dtype, products);
    combine_adasum(into_b, a, into_b, 2, dtype, products);
    for (const T* const out : {apart, into_a, into_b}) {
      EXPECT_EQ(row.sum, (std::vector<double>{number_of(out[0]), number_of(out[1])}));
    }
  };
  for (const DataType dtype : all_dtypes()) {
    for (const Row& row : rows) {
      if (is_floating(dtype)) {
        visit_dtype(dtype, [&](auto element) { check(row, dtype, element); });
      }
    }
  }
}

TEST(AdasumKernelTest, RefusesIntegers) {
  expect_error(status_of([] { pair_products(nullptr, nullptr, 0, DataType::kInt32); }),
               Code::kInvalidArgument,
               {"int32"});
}

}  // namespace
}  // namespace aiacc
