#include "csrc/base/recycling_queue.h"

#include <deque>
#include <random>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(RecyclingQueue, IsFirstInFirstOut) {
  std::mt19937 random(1);
  RecyclingQueue<int> queue;
  std::deque<int> expected;
  for (int i = 0; i < 10'000; ++i) {
    if (expected.empty() || random() % 100 < 51) {
      queue.push() = i;
      expected.push_back(i);
    } else {
      ASSERT_EQ(expected.front(), queue.front());
      queue.pop();
      expected.pop_front();
    }
    ASSERT_EQ(expected.size(), queue.size());
    ASSERT_EQ(expected.empty(), queue.empty());
  }
}

TEST(RecyclingQueue, GivesBackWhatWasSwappedIn) {
  RecyclingQueue<std::string> queue;
  const std::string text(1000, 'x');
  std::string value;
  for (int i = 0; i < 20; ++i) {
    value = text;
    const char* const memory = value.data();
    std::swap(queue.push(), value);
    std::swap(queue.front(), value);
    queue.pop();
    EXPECT_EQ(memory, value.data());
  }
  queue.push() = text;
  queue.clear();
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace aiacc
