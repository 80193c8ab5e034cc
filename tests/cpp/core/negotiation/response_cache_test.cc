#include "csrc/core/negotiation/response_cache.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

using Slot = ResponseCache::Slot;

ResponseCache::Key key_of(const Request& request) {
  return {request.process_set, digest_of(request.name)};
}

/// Uses the names in this order; how many of them had no slot.
std::size_t misses_of_step(ResponseCache& cache, const std::vector<std::string>& names) {
  std::size_t misses = 0;
  for (const std::string& name : names) {
    const Request request = make_request(name);
    if (const auto slot = cache.find(key_of(request))) {
      cache.touch(*slot);
    } else {
      std::vector<Slot> evicted;
      cache.insert(key_of(request), request, nullptr, evicted);
      ++misses;
    }
  }
  return misses;
}

std::vector<std::string> names_of(const std::string& model, std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back(model + std::to_string(i));
  }
  return names;
}

/// Names with a number that counts steps never come again.
TEST(ResponseCache, NamesThatComeOnceTakeLittleAndThoseOfAnOldModelGo) {
  ResponseCache cache(10, 500);
  std::size_t least = 5;
  for (int step = 0; step < 3000; ++step) {
    const bool old = step < 2000;
    const std::size_t misses = misses_of_step(cache, names_of(old ? "a" : "b", old ? 20 : 5));
    EXPECT_TRUE(!old || step < 3 || misses == 0) << step << ": the others keep their slots";
    least = old ? least : std::min(least, misses);
    misses_of_step(cache, {"step." + std::to_string(step)});
    ASSERT_TRUE(!old || cache.slots() <= 30) << step;
  }
  EXPECT_EQ(least, 0U);
  const auto of_model = [&](char model) {
    return cache.select([=](const Request& request) { return request.name[0] == model; }).size();
  };
  EXPECT_EQ(of_model('b'), 5U);
  EXPECT_EQ(of_model('a'), 0U);
}

/// Against a list of what is known.
TEST(ResponseCache, GivesTheLowestSlotAndTakesThoseUnusedForLong) {
  using Key = std::pair<std::uint32_t, std::string>;
  struct Known {
    Slot slot = 0;
    std::uint64_t used = 0;
    bool in_use = false;
  };
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::size_t capacity = random() % 6;
    const std::uint64_t patience = random() % 20;
    ResponseCache cache(capacity, patience);
    std::map<Key, Known> known;
    std::uint64_t clock = 0;
    for (int i = 0; i < 300; ++i) {
      Request request = make_request(std::string(1, static_cast<char>('a' + random() % 6)));
      request.process_set = random() % 2 == 0 ? 0 : 3;
      const Key key(request.process_set, request.name);
      const auto slot = cache.find(key_of(request));
      ASSERT_EQ(slot.has_value(), known.count(key) == 1) << key.second;
      if (slot && random() % 4 == 0) {
        cache.erase(*slot);
        ASSERT_FALSE(cache.has(*slot));
        known.erase(key);
        continue;
      }
      clock += capacity > 0 ? 1 : 0;
      if (slot) {
        ASSERT_EQ(*slot, known[key].slot);
        ASSERT_EQ(cache.at(*slot).name, key.second);
        cache.touch(*slot);
        known[key] = {*slot, clock, true};
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
      std::set<Slot> taken;
      std::size_t on_trial = 0;
      for (const auto& [other, one] : known) {
        taken.insert(one.slot);
        on_trial += one.in_use ? 0 : 1;
      }
      std::vector<Slot> evicted;
      const auto inserted = cache.insert(key_of(request), request, nullptr, evicted);
      ASSERT_EQ(evicted, expected);
      ASSERT_EQ(inserted.has_value(), on_trial < capacity);
      if (inserted) {
        Slot lowest = 0;
        while (taken.count(lowest) == 1) {
          ++lowest;
        }
        ASSERT_EQ(*inserted, lowest);
        ASSERT_LT(lowest, cache.slots());
        known[key] = {*inserted, clock, false};
      }
      const auto of_three = cache.select([](const Request& r) { return r.process_set == 3; });
      ASSERT_EQ(of_three.size(), std::count_if(known.begin(), known.end(), [](const auto& one) {
                  return one.first.first == 3;
                }));
    }
  }
}

}  // namespace
}  // namespace aiacc
