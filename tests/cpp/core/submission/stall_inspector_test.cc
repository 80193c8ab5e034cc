#include "csrc/core/submission/stall_inspector.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

const Clock::time_point kStart = Clock::time_point{} + std::chrono::hours(1);

Clock::time_point at(double seconds) {
  return kStart +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// What has waited so long at a rank, and is that of three ranks.
PendingName waits(const std::string& label, double seconds, const RankSet& ranks = {}) {
  return {label, static_cast<std::uint32_t>(1000 * seconds), RankSet(0, 2), false, ranks};
}

/// What the ranks, from 0 on, have submitted.
Answers answers_of(const std::vector<std::vector<std::string>>& by_rank) {
  Answers answers;
  std::map<std::string, RankSet> names;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const std::string& name : by_rank[rank]) {
      names[name].add(static_cast<int>(rank));
    }
  }
  for (const auto& [name, ranks] : names) {
    answers.names.push_back(waits(name, 20, ranks));
  }
  return answers;
}

TEST(StallInspector, NeverAsksWithoutReasonOrSwitchedOff) {
  const StallInspector inspector(10, 0);
  EXPECT_FALSE(inspector.should_ask({}, at(1000)));
  EXPECT_FALSE(inspector.should_ask({waits("x", 9.9)}, at(9.9)));
  const StallInspector off(0, 0);
  EXPECT_FALSE(off.should_ask({waits("x", 1e6)}, at(1e6)));
  EXPECT_TRUE(off.inspect(answers_of({{"x"}, {}})).empty()) << "what others have asked for";
}

TEST(StallInspector, AsksOncePerPeriodAboutTheOldestWhoeverAsks) {
  StallInspector inspector(10, 0);
  const auto asks_at = [&](double now) {
    return inspector.should_ask({waits("young", now - 5), waits("old", now)}, at(now));
  };
  EXPECT_FALSE(asks_at(9.9));
  EXPECT_TRUE(asks_at(10));
  inspector.asked(at(10));
  EXPECT_FALSE(asks_at(15));
  EXPECT_TRUE(asks_at(20));
}

TEST(StallInspector, AsksWhenTheLimitOfFailureIsReached) {
  StallInspector inspector(60, 100);
  const auto asks_at = [&](double now) { return inspector.should_ask({waits("x", now)}, at(now)); };
  EXPECT_TRUE(asks_at(60));
  inspector.asked(at(60));
  EXPECT_FALSE(asks_at(99));
  EXPECT_TRUE(asks_at(100)) << "not a whole warning period later";
  inspector.asked(at(100));
  EXPECT_FALSE(asks_at(159));
  EXPECT_TRUE(asks_at(160)) << "it was not fatal: go on warning";
  EXPECT_TRUE(StallInspector(0, 3).should_ask({waits("x", 3)}, at(4))) << "failure alone";
}

TEST(StallInspector, NamesWhoHasAndWhoHasNotSubmitted) {
  const StallInspector inspector(10, 30);
  Answers answers;
  answers.names = {waits("a", 15, RankSet(1)), waits("b", 20, RankSet(0, 1))};
  answers.names.push_back(waits("fresh", 5, RankSet(1)));
  answers.names.push_back(waits("ready", 15, RankSet(0, 2)));
  const auto stalls = inspector.inspect(answers);
  ASSERT_EQ(stalls.size(), 2U);
  EXPECT_EQ(stalls[0].name, "b") << "oldest first";
  EXPECT_EQ(stalls[0].submitted, RankSet(0, 1));
  EXPECT_EQ(stalls[0].missing, RankSet(2));
  EXPECT_DOUBLE_EQ(stalls[0].waited_s, 20);
  EXPECT_EQ(stalls[1].missing.ranks(), (std::vector<int>{0, 2}));
  EXPECT_EQ(stall_reporter(stalls), 0);
  EXPECT_FALSE(inspector.is_fatal(stalls[0]));
  answers.names[1].waited_ms = 30000;
  EXPECT_TRUE(inspector.is_fatal(inspector.inspect(answers)[0]));
}

TEST(StallInspector, OnlyWhoIsAwaitedAndHasNotJoinedCanBeMissing) {
  const StallInspector inspector(10, 0);
  Answers answers = answers_of({{"join"}, {"x", "y"}, {}});
  answers.names[1].awaited = RankSet(0, 1);
  answers.names.push_back({"receive 'z'", 30000, RankSet(0, 1), true, RankSet(1)});
  const auto stalls = inspector.inspect(answers);
  ASSERT_EQ(stalls.size(), 3U);
  EXPECT_EQ(stalls[0].missing, RankSet(0, 1)) << "a message, also of a rank that has joined";
  EXPECT_EQ(stalls[1].name, "join");
  EXPECT_EQ(stalls[2].name, "y");
  EXPECT_EQ(stalls[2].missing, RankSet(2));
}

TEST(StallInspector, SaysWhatTheMissingRanksWaitForAndTheOthersDoNot) {
  Stall stall;
  stall.name = "x";
  stall.submitted = RankSet(0);
  stall.missing = RankSet(1, 2);
  const std::string have = "for rank(s) 1, 2; rank(s) 0 have submitted it";
  const struct {
    const char* what;
    Answers answers;
    const char* said;
  } rows[] = {{"another name", answers_of({{"x"}, {"y"}, {"y"}}), "; rank(s) 1, 2 wait for 'y'"},
              {"the first one", answers_of({{"x"}, {"z"}, {"y", "z"}}), "; rank(s) 2 wait for 'y'"},
              {"one that all wait for",
               answers_of({{"a", "x"}, {"a", "b"}, {}}),
               "; rank(s) 1 wait for 'b'"},
              {"only that", answers_of({{"a", "x"}, {"a"}, {"a"}}), ""},
              {"nothing", answers_of({{"x"}, {}, {}}), ""}};
  for (const auto& [what, answers, said] : rows) {
    SCOPED_TRACE(what);
    expect_parts(stall_text({stall}, answers), {have + said + ". Do all"});
  }
}

TEST(StallInspector, AJobReportsOnceAndFewTensors) {
  constexpr int kRanks = 1000;
  Answers answers;
  for (int i = 0; i < 6000; ++i) {
    answers.names.push_back({"t" + std::to_string(i), 20000, RankSet(0, kRanks - 1)});
    answers.names.back().ranks = RankSet::of(std::vector<int>{1 + i % 2, 3});
  }
  const auto stalls = StallInspector(10, 0).inspect(answers);
  ASSERT_EQ(stalls.size(), 6000U);
  EXPECT_EQ(stall_reporter(stalls), 1);
  const std::string text = stall_text(stalls, {});
  expect_parts(text,
               {"for rank(s) 0, 2, 4 to 999; rank(s) 1, 3 have submitted it; tensor 't1' has",
                "; 5994 more tensors wait. Do all"});
  EXPECT_LT(text.size(), 700U);
}

TEST(StallInspector, TextAndJson) {
  Stall stall;
  stall.name = "conv\"1\"\\w\n";
  stall.waited_s = 61.04;
  stall.submitted = RankSet::of(std::vector<int>{0, 2});
  stall.missing = RankSet::of(std::vector<int>{1, 3});
  expect_parts(stall_text({stall}, {}),
               {"has waited 61.0 s for rank(s) 1, 3; rank(s) 0, 2 have submitted it"});
  EXPECT_EQ(stall_json(stall),
            R"({"tensor": "conv\"1\"\\w\u000a", "waited_s": 61.0, "missing_ranks": [1, 3], )"
            R"("submitted_ranks": [0, 2]})");
}

}  // namespace
}  // namespace aiacc
