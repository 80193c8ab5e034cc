#include "csrc/core/response_cache.h"

#include <list>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

using Slot = ResponseCache::Slot;

std::optional<Slot> insert(ResponseCache& cache, const std::string& name) {
  std::optional<Slot> evicted;
  return cache.insert(make_request(name), nullptr, evicted);
}

TEST(ResponseCache, FindsWhatWasInserted) {
  ResponseCache cache(4);
  EXPECT_FALSE(cache.find(0, "a"));
  EXPECT_EQ(insert(cache, "a"), Slot{0});
  EXPECT_EQ(insert(cache, "b"), Slot{1});
  EXPECT_EQ(cache.find(0, "b"), Slot{1});
  EXPECT_EQ(cache.at(1).name, "b");
  EXPECT_EQ(cache.slots(), 2U);
}

TEST(ResponseCache, ANameMayHaveASlotInEveryProcessSet) {
  ResponseCache cache(4);
  insert(cache, "a");
  Request other = make_request("a");
  other.process_set = 3;
  std::optional<Slot> evicted;
  EXPECT_EQ(cache.insert(other, nullptr, evicted), Slot{1});
  EXPECT_EQ(cache.find(0, "a"), Slot{0});
  EXPECT_EQ(cache.find(3, "a"), Slot{1});
  EXPECT_FALSE(cache.find(1, "a"));
  const auto of_three = cache.select([](const Request& r) { return r.process_set == 3; });
  EXPECT_EQ(of_three, std::vector<Slot>{1});
  cache.erase(0);
  EXPECT_FALSE(cache.find(0, "a"));
  EXPECT_EQ(cache.find(3, "a"), Slot{1});
  EXPECT_EQ(cache.select([](const Request&) { return true; }), std::vector<Slot>{1});
}

TEST(ResponseCache, CapacityZeroCachesNothing) {
  ResponseCache cache(0);
  EXPECT_FALSE(insert(cache, "a"));
  EXPECT_FALSE(cache.find(0, "a"));
  EXPECT_EQ(cache.slots(), 0U);
}

TEST(ResponseCache, FreedSlotsAreUsedAgainLowestFirst) {
  ResponseCache cache(8);
  for (const char* name : {"a", "b", "c"}) {
    insert(cache, name);
  }
  cache.erase(2);
  cache.erase(0);
  EXPECT_FALSE(cache.find(0, "a"));
  EXPECT_EQ(insert(cache, "d"), Slot{0});
  EXPECT_EQ(insert(cache, "e"), Slot{2});
  EXPECT_EQ(insert(cache, "f"), Slot{3});
}

/// Against a list in order of use.
TEST(ResponseCache, EvictsTheLeastRecentlyUsed) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::size_t capacity = 1 + random() % 5;
    ResponseCache cache(capacity);
    std::list<std::string> used;  // oldest first
    std::map<std::string, Slot> slots;
    for (int i = 0; i < 300; ++i) {
      const std::string name(1, static_cast<char>('a' + random() % 10));
      const auto slot = cache.find(0, name);
      ASSERT_EQ(slot.has_value(), slots.count(name) == 1);
      if (slot && random() % 4 == 0) {
        cache.erase(*slot);
        used.remove(name);
        slots.erase(name);
        continue;
      }
      used.remove(name);
      used.push_back(name);
      if (slot) {
        ASSERT_EQ(*slot, slots[name]);
        cache.touch(*slot);
        continue;
      }
      std::optional<Slot> evicted;
      const auto inserted = cache.insert(make_request(name), nullptr, evicted);
      ASSERT_TRUE(inserted);
      ASSERT_EQ(evicted.has_value(), slots.size() == capacity);
      if (evicted) {
        ASSERT_EQ(*evicted, slots[used.front()]);
        slots.erase(used.front());
        used.pop_front();
      }
      slots[name] = *inserted;
      ASSERT_LE(cache.slots(), capacity);
    }
  }
}

}  // namespace
}  // namespace aiacc
