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

TEST(BitVector, GrowsByWordsAndKeepsWhatWasSet) {
  BitVector bits;
  EXPECT_EQ(bits.words(), 0U);
  for (const auto& [size, words] : {std::pair(1U, 1U), {64U, 1U}, {65U, 2U}, {3U, 2U}}) {
    bits.grow(size);
    EXPECT_EQ(bits.words(), words) << size;
    EXPECT_TRUE(ones(bits).empty());
  }
  bits.set(0);
  bits.set(63);
  bits.grow(1000);
  EXPECT_EQ(ones(bits), (std::vector<std::size_t>{0, 63}));
}

TEST(BitVector, BehavesAsASetOfNumbers) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    BitVector bits[2];
    std::set<std::size_t> expected[2];
    for (int i = 0; i < 1000; ++i) {
      BitVector& mine = bits[i % 2];
      mine.grow(300);
      const std::size_t bit = random() % 300;
      if (random() % 2 == 0) {
        mine.set(bit);
        expected[i % 2].insert(bit);
      } else {
        mine.clear(bit);
        expected[i % 2].erase(bit);
      }
      ASSERT_EQ(mine.test(bit), expected[i % 2].count(bit) == 1);
    }
    EXPECT_EQ(ones(bits[0]), std::vector<std::size_t>(expected[0].begin(), expected[0].end()));
    bits[0].merge(bits[1]);
    expected[0].insert(expected[1].begin(), expected[1].end());
    EXPECT_EQ(ones(bits[0]), std::vector<std::size_t>(expected[0].begin(), expected[0].end()));
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

}  // namespace
}  // namespace aiacc
