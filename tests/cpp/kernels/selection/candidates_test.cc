#include "csrc/kernels/selection/candidates.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/vector/level.h"
#include "tests/cpp/kernels/selection/distributions.h"

namespace aiacc {
namespace {

constexpr std::size_t kCount = 200000;
constexpr std::size_t kK = 2000;

class CandidatesTest : public testing::Test {
 protected:
  CandidatesTest() { use(elements_of(Shape::kGaussian, kCount, 1)); }

  void use(const std::vector<float>& elements) {
    elements_ = elements;
    sorted_ = sorted_magnitudes(elements);
  }
  Source source() const {
    return {*runnable_vector_levels().front(), elements_.data(), nullptr, elements_.size(), 1.0F};
  }

  std::vector<float> elements_;
  std::vector<float> sorted_;
  SelectScratch scratch_;
};

TEST_F(CandidatesTest, AreWhatReachesTheThresholdInOrder) {
  const Source from = source();
  Candidates candidates(from, kK, scratch_);
  const float low = sorted_[kK + 99];
  const Candidates::Found found = candidates.find(magnitude_bits(low));
  EXPECT_EQ(Scan::kHit, found.scan);
  EXPECT_EQ(kK + 100, found.seen);
  EXPECT_EQ(magnitude_bits(sorted_.front()), found.largest);
  ASSERT_EQ(kK + 100, candidates.size());
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    ASSERT_EQ(elements_[candidates.index(i)], candidates.value(i));
    ASSERT_TRUE(i == 0 || candidates.index(i - 1) < candidates.index(i));
  }
  EXPECT_EQ(sorted_[kK - 1], candidates.bracket().low);
}

TEST_F(CandidatesTest, TooFewAreTold) {
  const Source from = source();
  Candidates candidates(from, kK, scratch_);
  EXPECT_EQ(Scan::kTooFew, candidates.find(magnitude_bits(sorted_[kK - 2])).scan);
  EXPECT_EQ(kK - 1, candidates.size());
  EXPECT_EQ(Scan::kHit, candidates.find(magnitude_bits(sorted_[kK - 1])).scan);
}

/// Without any threshold, in every order: one pass finds the k largest in bounded memory.
TEST_F(CandidatesTest, AreThinnedWhereTheyAreTooMany) {
  for (const Shape shape : {Shape::kGaussian, Shape::kAscending, Shape::kStudent}) {
    use(elements_of(shape, kCount, 2));
    const Source from = source();
    Candidates candidates(from, kK, scratch_);
    EXPECT_EQ(Scan::kHit, candidates.find(0).scan);
    EXPECT_LE(candidates.size(), candidate_room(kCount, kK));
    EXPECT_EQ(sorted_[kK - 1], candidates.bracket().low) << static_cast<int>(shape);
    EXPECT_LE(scratch_.values.size(), candidate_room(kCount, kK) + Candidates::kSlack);
  }
}

TEST_F(CandidatesTest, EqualOnesAreNotThinned) {
  use(elements_of(Shape::kConstant, kCount, 3));
  const Source from = source();
  Candidates candidates(from, kK, scratch_);
  EXPECT_EQ(Scan::kTooMany, candidates.find(0).scan);
}

TEST_F(CandidatesTest, NotFiniteIsFoundBehindTooMany) {
  use(elements_of(Shape::kConstant, kCount, 4));
  elements_.back() = NAN;
  const Source from = source();
  Candidates candidates(from, kK, scratch_);
  EXPECT_GT(candidates.find(0).largest, kInfinityBits);
}

}  // namespace
}  // namespace aiacc
