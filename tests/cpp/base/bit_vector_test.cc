#include "csrc/base/bit_vector.h"

#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

std::vector<std::size_t> ones(const BitVector& bits) {
  std::vector<std::size_t> result;
  bits.for_each([&](std::size_t bit) { result.push_back(bit); });
  return result;
}

TEST(BitVector, StartsEmptyAndGrowsByWords) {
  BitVector bits;
  EXPECT_EQ(bits.words(), 0U);
  bits.grow(1);
  EXPECT_EQ(bits.words(), 1U);
  bits.grow(64);
  EXPECT_EQ(bits.words(), 1U);
  bits.grow(65);
  EXPECT_EQ(bits.words(), 2U);
  bits.grow(3);
  EXPECT_EQ(bits.words(), 2U) << "it must not shrink";
  EXPECT_TRUE(ones(bits).empty());
}

TEST(BitVector, GrowingKeepsWhatWasSet) {
  BitVector bits;
  bits.grow(64);
  bits.set(0);
  bits.set(63);
  bits.grow(1000);
  EXPECT_EQ(ones(bits), (std::vector<std::size_t>{0, 63}));
}

TEST(BitVector, BehavesAsASetOfNumbers) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    BitVector bits;
    bits.grow(300);
    std::set<std::size_t> expected;
    for (int i = 0; i < 500; ++i) {
      const std::size_t bit = random() % 300;
      if (random() % 2 == 0) {
        bits.set(bit);
        expected.insert(bit);
      } else {
        bits.clear(bit);
        expected.erase(bit);
      }
      ASSERT_EQ(bits.test(bit), expected.count(bit) == 1) << "seed " << seed;
    }
    EXPECT_EQ(ones(bits), std::vector<std::size_t>(expected.begin(), expected.end()))
        << "seed " << seed;
  }
}

TEST(BitVector, WordsAreWhatTravels) {
  BitVector bits;
  bits.assign(2, 0);
  bits.word(1) = 0x8000000000000001U;
  EXPECT_EQ(ones(bits), (std::vector<std::size_t>{64, 127}));
  EXPECT_EQ(bits.word(0), 0U);
  bits.assign(1, 0);
  EXPECT_EQ(bits.words(), 1U);
}

TEST(BitVector, MergeSetsWhatEitherHas) {
  BitVector a;
  BitVector b;
  a.grow(130);
  b.grow(130);
  a.set(0);
  a.set(64);
  b.set(64);
  b.set(129);
  a.merge(b);
  EXPECT_EQ(ones(a), (std::vector<std::size_t>{0, 64, 129}));
}

}  // namespace
}  // namespace aiacc
