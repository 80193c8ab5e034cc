#include "csrc/core/negotiation/response_cache.h"

#include <algorithm>
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
  std::vector<Slot> evicted;
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
  std::vector<Slot> evicted;
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

/// A step's names, in the order of the step, over and over again; how many of them had no slot.
std::size_t misses_of_step(ResponseCache& cache, std::size_t names) {
  std::size_t misses = 0;
  for (std::size_t i = 0; i < names; ++i) {
    const std::string name = std::to_string(i);
    if (const auto slot = cache.find(0, name)) {
      cache.touch(*slot);
    } else {
      ++misses;
      insert(cache, name);
    }
  }
  return misses;
}

TEST(ResponseCache, MoreNamesThanCapacityGetSlotsAndKeepThem) {
  for (const std::size_t capacity : {1, 7, 40, 99, 100, 1000}) {
    SCOPED_TRACE(capacity);
    constexpr std::size_t kNames = 100;
    ResponseCache cache(capacity);
    std::size_t before = kNames + capacity;
    std::size_t steps = 0;
    for (std::size_t misses = kNames; misses > 0; ++steps) {
      misses = misses_of_step(cache, kNames);
      ASSERT_LT(misses, before) << "step " << steps << " has taught nothing";
      before = misses;
    }
    EXPECT_LE(steps, (kNames + capacity - 1) / capacity + 1);
    EXPECT_EQ(misses_of_step(cache, kNames), 0U);
    EXPECT_EQ(cache.slots(), kNames);
  }
}

/// Names with a number that counts steps never come again.
TEST(ResponseCache, NamesThatComeOnceTakeNoMoreThanTheCapacity) {
  ResponseCache cache(10, 500);
  for (int step = 0; step < 2000; ++step) {
    const std::size_t misses = misses_of_step(cache, 20);
    EXPECT_TRUE(step < 3 || misses == 0) << step << ": the others keep their slots";
    insert(cache, "step." + std::to_string(step));
    ASSERT_LE(cache.slots(), 30U);
  }
}

TEST(ResponseCache, NewNamesGetSlotsWhenOldOnesDoNotComeAgain) {
  ResponseCache cache(10, 500);
  for (int i = 0; i < 3; ++i) {
    misses_of_step(cache, 20);
  }
  std::size_t least = 5;
  for (int step = 0; step < 1000; ++step) {  // of another model
    std::size_t misses = 0;
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      if (const auto slot = cache.find(0, name)) {
        cache.touch(*slot);
      } else {
        ++misses;
        insert(cache, name);
      }
    }
    insert(cache, "step." + std::to_string(step));
    least = std::min(least, misses);
  }
  EXPECT_EQ(least, 0U);
  const auto left = cache.select([](const Request& request) { return request.name.size() < 3; });
  EXPECT_EQ(left.size(), 5U) << "the old model's names are gone";
}

/// Against lists in order of use.
TEST(ResponseCache, WhatIsUnusedForLongGivesWay) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::size_t capacity = 1 + random() % 5;
    const std::uint64_t patience = random() % 20;
    ResponseCache cache(capacity, patience);
    struct Known {
      Slot slot = 0;
      std::uint64_t used = 0;
      bool in_use = false;
    };
    std::map<std::string, Known> known;
    std::uint64_t clock = 0;
    for (int i = 0; i < 300; ++i) {
      const std::string name(1, static_cast<char>('a' + random() % 12));
      const auto slot = cache.find(0, name);
      ASSERT_EQ(slot.has_value(), known.count(name) == 1) << name;
      if (slot && random() % 4 == 0) {
        cache.erase(*slot);
        known.erase(name);
        continue;
      }
      ++clock;
      if (slot) {
        ASSERT_EQ(*slot, known[name].slot);
        cache.touch(*slot);
        known[name] = {*slot, clock, true};
        continue;
      }
      std::vector<Slot> expected;
      for (const bool in_use : {false, true}) {
        auto oldest = known.end();
        for (auto at = known.begin(); at != known.end(); ++at) {
          if (at->second.in_use == in_use &&
              (oldest == known.end() || at->second.used < oldest->second.used)) {
            oldest = at;
          }
        }
        const std::uint64_t most = std::max<std::uint64_t>(patience, 3 * known.size() / 2);
        if (oldest != known.end() && clock - oldest->second.used > most) {
          expected.push_back(oldest->second.slot);
          known.erase(oldest);
        }
      }
      const auto on_trial = static_cast<std::size_t>(std::count_if(
          known.begin(), known.end(), [](const auto& one) { return !one.second.in_use; }));
      std::vector<Slot> evicted;
      const auto inserted = cache.insert(make_request(name), nullptr, evicted);
      ASSERT_EQ(evicted, expected);
      ASSERT_EQ(inserted.has_value(), on_trial < capacity);
      if (inserted) {
        known[name] = {*inserted, clock, false};
      }
    }
  }
}

}  // namespace
}  // namespace aiacc
