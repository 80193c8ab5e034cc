// The bodies of the CUDA kernels that pack factors, run on the host.

#include "csrc/kernels/gpu/optim/factor_packing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/kernels/gpu/optim/factors.h"

namespace aiacc {
namespace {

template <class T>
constexpr DataType kType = sizeof(T) == sizeof(float) ? DataType::kFloat32 : DataType::kFloat64;

template <class T>
void run(FactorWork work,
         const std::vector<FactorStack>& stacks,
         std::uint32_t blocks = 7,
         bool backwards = false) {
  FactorBatch batch;
  plan_factors(kType<T>, stacks.data(), stacks.size(), batch);
  const FactorKernel& kernel = factor_kernels()[choose_factor_kernel(work, kType<T>)];
  kernel.run(batch, std::min(blocks, batch.chunks), backwards);
}

template <class T>
class FactorPacking : public testing::Test {
 protected:
  /// Tiles have 64 rows, squares 128, and from 257 on matrices are cut.
  static Factors<T> made() {
    return Factors<T>({{1, 1},
                       {5, 3},
                       {64, 1},
                       {0, 2},
                       {65, 2},
                       {4, 0},
                       {130, 1},
                       {256, 1},
                       {257, 1},
                       {300, 2},
                       {384, 1},
                       {460, 1}});
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(FactorPacking, Types);

TYPED_TEST(FactorPacking, PacksUpperTrianglesAndReadsNothingElse) {
  using T = TypeParam;
  Factors<T> factors = this->made();
  Factors<T> expected = this->made();
  for (Factors<T>* one : {&factors, &expected}) {
    one->each([](T& upper, T& lower, T&, std::size_t place) {
      lower = std::numeric_limits<T>::infinity();
      upper = static_cast<T>(value_of(place));
    });
  }
  expected.each([](T& upper, T&, T& packed, std::size_t) { packed = upper; });
  run<T>(FactorWork::kPack, factors.stacks());
  EXPECT_EQ(expected.packed(), factors.packed());
  EXPECT_EQ(expected.matrices(), factors.matrices());
}

TYPED_TEST(FactorPacking, UnpacksBothTrianglesAndWritesNothingElse) {
  using T = TypeParam;
  Factors<T> factors = this->made();
  Factors<T> expected = this->made();
  for (Factors<T>* one : {&factors, &expected}) {
    one->each(
        [](T&, T&, T& packed, std::size_t place) { packed = static_cast<T>(value_of(place)); });
  }
  expected.each([](T& upper, T& lower, T& packed, std::size_t) { upper = lower = packed; });
  run<T>(FactorWork::kUnpack, factors.stacks());
  EXPECT_EQ(expected.packed(), factors.packed());
  EXPECT_EQ(expected.matrices(), factors.matrices());
}

TYPED_TEST(FactorPacking, WhatIsPackedEntersAMeanByItsUpperTriangle) {
  using T = TypeParam;
  for (const double enters : {0.25, 0.75, 1.0}) {
    Factors<T> factors = this->made();
    Factors<T> expected = this->made();
    for (Factors<T>* one : {&factors, &expected}) {
      one->each([&](T& upper, T& lower, T& packed, std::size_t place) {
        packed = static_cast<T>(value_of(place));
        lower = std::numeric_limits<T>::quiet_NaN();
        // One that has full weight is the first: nothing is there yet.
        upper = enters == 1 ? lower : static_cast<T>(value_of(3 * place));
      });
    }
    // Of these numbers everything is exact.
    expected.each([&](T& upper, T& lower, T& packed, std::size_t) {
      const double mean = enters == 1 ? 0 : static_cast<double>(upper);
      upper = static_cast<T>(mean + enters * (0.5 * static_cast<double>(packed) - mean));
      lower = upper;
    });
    std::vector<FactorStack> stacks = factors.stacks();
    for (FactorStack& stack : stacks) {
      stack.scale = 0.5;
      stack.enters = enters;
    }
    run<T>(FactorWork::kAverage, stacks);
    EXPECT_EQ(expected.packed(), factors.packed());
    EXPECT_EQ(expected.matrices(), factors.matrices()) << enters;
  }
}

TYPED_TEST(FactorPacking, BlocksOfAnyNumberAndOrderDoTheSame) {
  using T = TypeParam;
  for (const FactorWork work : {FactorWork::kPack, FactorWork::kUnpack, FactorWork::kAverage}) {
    std::vector<Factors<T>> done;
    for (const std::uint32_t blocks : {1U, 2U, 5U, 31U, 100000U}) {
      for (const bool backwards : {false, true}) {
        Factors<T>& factors = done.emplace_back(this->made());
        factors.each([](T& upper, T&, T& packed, std::size_t place) {
          upper = static_cast<T>(value_of(place));
          packed = static_cast<T>(value_of(7 * place));
        });
        std::vector<FactorStack> stacks = factors.stacks();
        for (FactorStack& stack : stacks) {
          stack.enters = 0.3;
        }
        run<T>(work, stacks, blocks, backwards);
        ASSERT_EQ(done[0].packed(), factors.packed()) << blocks;
        ASSERT_EQ(done[0].matrices(), factors.matrices()) << blocks;
      }
    }
  }
}

TEST(FactorPlan, RefusesWhatItCannot) {
  std::vector<double> memory(8);
  const auto refused = [&](const FactorStack& stack, DataType dtype = DataType::kFloat64) {
    FactorBatch batch;
    try {
      plan_factors(dtype, &stack, 1, batch);
    } catch (const Error& error) {
      EXPECT_EQ(Code::kInvalidArgument, error.code());
      return std::string(error.what());
    }
    return std::string();
  };
  double* even = memory.data();
  float* odd = reinterpret_cast<float*>(even) + 1;
  EXPECT_NE(std::string::npos, refused({odd, even, 2, 1, 2, 0}).find("a multiple of 8"));
  EXPECT_NE(std::string::npos, refused({even, odd, 2, 1, 2, 0}).find("a multiple of 8"));
  EXPECT_EQ("", refused({odd, odd, 2, 1, 2, 0}, DataType::kFloat32));
  EXPECT_EQ("", refused({even, even, 64, 1ULL << 31, 64, 4096}));
  EXPECT_NE(std::string::npos, refused({even, even, 64, (1ULL << 31) + 1, 64, 4096}).find("2^31"));
  EXPECT_EQ("", refused({even, even, 65535ULL * 64, 1, 1ULL << 22, 0}));
  EXPECT_NE(std::string::npos, refused({even, even, 1ULL << 22, 1, 1ULL << 22, 0}).find("2^31"));
  EXPECT_NE(std::string::npos, refused({even, even, ~0ULL, ~0ULL, 1, 1}).find("2^31"));
  EXPECT_THROW(choose_factor_kernel(FactorWork::kPack, DataType::kFloat16), Error);
}

}  // namespace
}  // namespace aiacc
