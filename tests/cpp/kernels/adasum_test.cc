#include "csrc/kernels/adasum.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/half.h"

namespace aiacc {
namespace {

template <class T>
std::vector<T> adaptive_sum(const std::vector<T>& a, const std::vector<T>& b, DataType dtype) {
  std::vector<T> out(a.size());
  const PairProducts products = pair_products(a.data(), b.data(), a.size(), dtype);
  combine_adasum(out.data(), a.data(), b.data(), a.size(), dtype, products);
  return out;
}

TEST(AdasumKernelTest, ProductsAreThoseOfTheTextbook) {
  const std::vector<double> a = {1, 2, 3};
  const std::vector<double> b = {4, -5, 6};
  const PairProducts products = pair_products(a.data(), b.data(), 3, DataType::kFloat64);
  EXPECT_EQ(12, products.ab);
  EXPECT_EQ(14, products.aa);
  EXPECT_EQ(77, products.bb);
}

TEST(AdasumKernelTest, ProductsOfEveryLength) {
  for (std::size_t count = 0; count < 40; ++count) {
    const std::vector<float> a(count, 2.0f);
    const std::vector<float> b(count, 3.0f);
    const PairProducts products = pair_products(a.data(), b.data(), count, DataType::kFloat32);
    const auto n = static_cast<double>(count);
    EXPECT_EQ(6 * n, products.ab);
    EXPECT_EQ(4 * n, products.aa);
    EXPECT_EQ(9 * n, products.bb);
  }
}

TEST(AdasumKernelTest, AddsOrthogonalVectors) {
  EXPECT_EQ((std::vector<float>{1, 2}), adaptive_sum<float>({1, 0}, {0, 2}, DataType::kFloat32));
}

TEST(AdasumKernelTest, AveragesParallelVectors) {
  EXPECT_EQ((std::vector<float>{2, 4}), adaptive_sum<float>({1, 2}, {3, 6}, DataType::kFloat32));
}

TEST(AdasumKernelTest, LeavesTheOtherOfANullVector) {
  EXPECT_EQ((std::vector<double>{1, 2}), adaptive_sum<double>({1, 2}, {0, 0}, DataType::kFloat64));
  EXPECT_EQ((std::vector<double>{1, 2}), adaptive_sum<double>({0, 0}, {1, 2}, DataType::kFloat64));
}

/// a' = (1 - ab / 2aa) a + (1 - ab / 2bb) b with ab = 1, aa = 1, bb = 2.
TEST(AdasumKernelTest, WeighsWhatIsBetween) {
  EXPECT_EQ((std::vector<double>{1.25, 0.75}),
            adaptive_sum<double>({1, 0}, {1, 1}, DataType::kFloat64));
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

TEST(AdasumKernelTest, WorksInPlaceOfEither) {
  std::vector<double> a = {1, 0};
  std::vector<double> b = {1, 1};
  const PairProducts products = pair_products(a.data(), b.data(), 2, DataType::kFloat64);
  std::vector<double> into = a;
  combine_adasum(into.data(), into.data(), b.data(), 2, DataType::kFloat64, products);
  EXPECT_EQ((std::vector<double>{1.25, 0.75}), into);
  into = b;
  combine_adasum(into.data(), a.data(), into.data(), 2, DataType::kFloat64, products);
  EXPECT_EQ((std::vector<double>{1.25, 0.75}), into);
}

TEST(AdasumKernelTest, RefusesIntegers) {
  try {
    pair_products(nullptr, nullptr, 0, DataType::kInt32);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kInvalidArgument, error.code());
    EXPECT_NE(std::string::npos, std::string(error.what()).find("int32")) << error.what();
  }
}

}  // namespace
}  // namespace aiacc
