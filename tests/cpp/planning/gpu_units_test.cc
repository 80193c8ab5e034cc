#include <vector>

#include <gtest/gtest.h>

#include "csrc/planning/device_placement.h"
#include "csrc/planning/launch_groups.h"
#include "csrc/planning/staging_chunks.h"
#include "csrc/planning/unit_planner.h"

namespace aiacc {
namespace {

/// Sizes of the groups.
std::vector<int> groups_of(const std::vector<LaunchSlot>& units) {
  std::vector<bool> joined = {true};  // forgotten
  plan_launch_groups(units, joined);
  EXPECT_EQ(units.size(), joined.size());
  std::vector<int> sizes;
  bool open = false;
  for (const bool next : joined) {
    if (!open) {
      sizes.push_back(0);
    }
    ++sizes.back();
    open = next;
  }
  EXPECT_FALSE(open) << "the last unit is the last of its group";
  return sizes;
}

TEST(PlanGroups, OneUnitForEachLaneAndOneEngineForEach) {
  EXPECT_EQ((std::vector<int>{2, 2, 1}), groups_of({{0, 0}, {0, 1}, {0, 0}, {0, 1}, {0, 0}}));
  EXPECT_EQ((std::vector<int>{1, 2, 1}), groups_of({{0, 1}, {0, 1}, {0, 0}, {0, 0}}));
  EXPECT_EQ((std::vector<int>{3}), groups_of({{0, 63}, {0, 0}, {0, 7}}));
  EXPECT_EQ((std::vector<int>{1, 1}), groups_of({{0, 0}, {0, 0}}));
  EXPECT_EQ((std::vector<int>{2, 1, 1}), groups_of({{0, 0}, {0, 1}, {1, 2}, {0, 3}}));
  EXPECT_TRUE(groups_of({}).empty());
}

/// Who has joined takes any.
TEST(DevicePlacementTest, TheFirstThatServes) {
  const std::vector<DevicePlacement> known = {{0, 1}, {2, 1}, {3, -1}};
  EXPECT_EQ(0U, find_placement(known, {0, 1}));
  EXPECT_EQ(1U, find_placement(known, {2, 1}));
  EXPECT_EQ(3U, find_placement(known, {1, 0})) << "crosswise is another one";
  EXPECT_EQ(0U, find_placement({}, {0, 1}));
  EXPECT_EQ(0U, find_placement(known, {0, -1}));
  EXPECT_EQ(1U, find_placement(known, {2, -1}));
  EXPECT_EQ(0U, find_placement(known, {-1, 1}));
  EXPECT_EQ(3U, find_placement(known, {4, -1}));
  EXPECT_EQ(2U, find_placement(known, {3, -1}));
  EXPECT_EQ(3U, find_placement(known, {3, 0})) << "a joined rank happened to be there";
}

TEST(DevicePlacementTest, TheSameByValue) {
  const auto a = std::make_shared<DevicePlacement>(DevicePlacement{0, 1});
  EXPECT_TRUE(same_placement(nullptr, nullptr));
  EXPECT_TRUE(same_placement(a, std::make_shared<DevicePlacement>(*a)));
  EXPECT_FALSE(same_placement(a, std::make_shared<DevicePlacement>(DevicePlacement{0, 0})));
  EXPECT_FALSE(same_placement(a, nullptr));
  EXPECT_FALSE(same_placement(nullptr, a));
}

TEST(StagingChunks, AreAsFewAsTheLimitAllows) {
  EXPECT_EQ(staging_chunks(0), 1U);
  EXPECT_EQ(staging_chunks(1), 1U);
  EXPECT_EQ(staging_chunks(kStagingChunkBytes), 1U);
  EXPECT_EQ(staging_chunks(kStagingChunkBytes + 1), 2U);
  EXPECT_EQ(staging_chunks(10 * kStagingChunkBytes), 10U);
}

TEST(StagingChunks, CoverEveryRunOnceAndInOrder) {
  for (const std::uint64_t bytes : {0ULL, 1ULL, 255ULL, 256ULL, 257ULL, 5000ULL, 9999999ULL}) {
    for (const std::size_t chunks : {1U, 2U, 3U, 7U, 64U}) {
      std::uint64_t end = 0;
      for (std::size_t i = 0; i < chunks; ++i) {
        const ByteRange range = staging_chunk(bytes, chunks, i);
        EXPECT_EQ(range.begin, end) << bytes << " bytes, chunk " << i << " of " << chunks;
        EXPECT_LE(range.bytes, bytes / chunks + kSliceAlignment);
        EXPECT_TRUE(range.begin % kSliceAlignment == 0 || range.bytes == 0);
        end = range.begin + range.bytes;
      }
      EXPECT_EQ(end, bytes);
    }
  }
}

}  // namespace
}  // namespace aiacc
