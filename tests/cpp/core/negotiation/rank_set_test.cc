#include "csrc/core/negotiation/rank_set.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/process_set_table.h"

namespace aiacc {
namespace {

RankSet set_of(const std::set<int>& ranks) {
  RankSet set;
  for (const int rank : ranks) {
    set.add(rank);
  }
  return set;
}

Bytes encoded(const RankSet& set) {
  Bytes bytes;
  Writer writer(bytes);
  set.encode(writer);
  return bytes;
}

RankSet decoded(const Bytes& bytes, int size = kMostRanks) {
  Reader reader(bytes);
  RankSet set = RankSet::decode(reader, size);
  reader.finish();
  return set;
}

class RankSetTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }

  std::set<int> some_ranks(std::mt19937& random) const {
    const std::uint32_t one_in = 1 + random() % 9;
    std::set<int> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      if (random() % one_in == 0) {
        ranks.insert(rank);
      }
    }
    return ranks;
  }
};

TEST_P(RankSetTest, IsASet) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::set<int> a = some_ranks(random);
    const std::set<int> b = some_ranks(random);
    std::set<int> both = a;
    both.insert(b.begin(), b.end());
    std::set<int> rest = a;
    for (const int rank : b) {
      rest.erase(rank);
    }
    std::vector<int> shuffled(b.begin(), b.end());
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    RankSet one_by_one = set_of(a);
    for (const int rank : shuffled) {
      one_by_one.add(rank);
    }
    RankSet at_once = set_of(a);
    at_once.add(set_of(b));
    RankSet other_way = set_of(b);
    other_way.add(set_of(a));
    EXPECT_EQ(at_once.ranks(), std::vector<int>(both.begin(), both.end()));
    EXPECT_EQ(at_once, one_by_one);
    EXPECT_EQ(set_of(a).without(set_of(b)), RankSet::of(rest));
    EXPECT_EQ(at_once, other_way);
    EXPECT_EQ(at_once.count(), both.size());
    EXPECT_EQ(at_once.empty(), both.empty());
    EXPECT_EQ(at_once == set_of(a), both == a);
    EXPECT_EQ(set_of(a).meets(set_of(b)), a.size() + b.size() > both.size());
    for (int rank = -1; rank <= size(); ++rank) {
      EXPECT_EQ(at_once.has(rank), both.count(rank) == 1) << rank;
    }
    if (!both.empty()) {
      EXPECT_EQ(at_once.first(), *both.begin());
      EXPECT_EQ(at_once.last(), *both.rbegin());
    }
  }
}

TEST_P(RankSetTest, TravelsInOneFormAndNoLongerThanABitPerRank) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::set<int> ranks = some_ranks(random);
    ranks.insert(size() - 1);
    const Bytes bytes = encoded(set_of(ranks));
    EXPECT_LE(bytes.size(), static_cast<std::size_t>(size()) / 8 + 6);
    EXPECT_EQ(decoded(bytes).ranks(), std::vector<int>(ranks.begin(), ranks.end()));
    EXPECT_EQ(encoded(decoded(bytes)), bytes);
  }
  EXPECT_LE(encoded(RankSet(0, size() - 1)).size(), 4U) << "all ranks";
}

INSTANTIATE_TEST_SUITE_P(Sizes, RankSetTest, testing::Values(1, 2, 3, 64, 65, 1024));

/// Before it takes memory for them.
TEST(RankSet, RefusesNobodyAndRanksBeyondTheJob) {
  const auto accepted = [](const Bytes& bytes, int size) {
    try {
      decoded(bytes, size);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kPeerLost);
      return false;
    }
  };
  std::set<int> even;
  for (int rank = 0; rank < kMostRanks; rank += 2) {
    even.insert(rank);
  }
  std::set<int> odd_end = even;  // the last byte of the bits reaches beyond the last rank
  odd_end.insert(kMostRanks - 1);
  odd_end.erase(0);
  for (const RankSet& set :
       {set_of(even), set_of(odd_end), RankSet(0, kMostRanks - 1), RankSet(kMostRanks - 1)}) {
    EXPECT_TRUE(accepted(encoded(set), kMostRanks));
    EXPECT_TRUE(accepted(encoded(set), set.last() + 1));
    EXPECT_FALSE(accepted(encoded(set), set.last()));
    EXPECT_FALSE(accepted(encoded(set), 64));
  }
  even.insert(kMostRanks + 20);
  for (const RankSet& set :
       {set_of(even), RankSet(), RankSet(kMostRanks), RankSet(0, kMostRanks)}) {
    EXPECT_FALSE(accepted(encoded(set), kMostRanks));
  }
  EXPECT_FALSE(accepted({}, kMostRanks));
  EXPECT_FALSE(accepted({0x03, 0x00}, kMostRanks)) << "bits that do not come";
  EXPECT_FALSE(accepted({0x03, 0x00, 0x00}, kMostRanks)) << "no bit";
}

TEST(ProcessSetTable, KnowsMembersAndTheirPlacesAndUsesNoNumberAgain) {
  ProcessSetTable sets(6);
  const auto id = sets.add({1, 4, 5});
  const auto formed = sets.form({0, 3});
  EXPECT_EQ(*sets.members(id), (std::vector<int>{1, 4, 5}));
  for (const auto& [rank, place] : std::map<int, int>{{1, 0}, {5, 2}, {3, -1}, {6, -1}}) {
    EXPECT_EQ(sets.index_of(id, rank), place) << rank;
  }
  EXPECT_EQ(sets.index_of(77, 1), -1);
  EXPECT_EQ(sets.find({1, 4, 5}), id);
  EXPECT_EQ(sets.find({0, 1, 2, 3, 4, 5}), 0U);
  EXPECT_FALSE(sets.find({1, 4}));
  EXPECT_FALSE(sets.find({0, 3})) << "it was formed, so there may be others";
  EXPECT_EQ(sets.size(), 3U);

  EXPECT_FALSE(sets.remove(0));
  EXPECT_TRUE(sets.remove(id));
  EXPECT_FALSE(sets.remove(id));
  EXPECT_EQ(sets.members(id), nullptr);
  EXPECT_FALSE(sets.find({1, 4, 5}));
  EXPECT_GT(sets.add({1, 4, 5}), formed);
  EXPECT_NE(sets.members(0), nullptr);
}

}  // namespace
}  // namespace aiacc
