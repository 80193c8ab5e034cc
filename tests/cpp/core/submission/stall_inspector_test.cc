#include "csrc/core/submission/stall_inspector.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

using Pending = StallInspector::Pending;

const Clock::time_point kStart = Clock::time_point{} + std::chrono::hours(1);

const ProcessSetTable kSets(3);

Clock::time_point at(double seconds) {
  return kStart +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// What the ranks, from 0 on, have submitted.
Answers answers_of(const std::vector<std::vector<std::string>>& by_rank) {
  Answers answers;
  std::map<std::string, RankSet> names;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    answers.ranks.add(static_cast<int>(rank));
    for (const std::string& name : by_rank[rank]) {
      names[name].add(static_cast<int>(rank));
    }
  }
  for (const auto& [name, ranks] : names) {
    answers.names.push_back({name, ranks});
  }
  return answers;
}

TEST(StallInspector, NeverAsksWithoutReasonOrSwitchedOff) {
  StallInspector inspector(10, 0);
  EXPECT_EQ(inspector.next_check({}), Clock::time_point::max());
  EXPECT_FALSE(inspector.should_ask({}, at(1000)));
  EXPECT_FALSE(inspector.should_ask({{"x", at(0)}}, at(9.9)));
  StallInspector off(0, 0);
  EXPECT_EQ(off.next_check({{"x", at(0)}}), Clock::time_point::max());
  EXPECT_FALSE(off.should_ask({{"x", at(0)}}, at(1e6)));
  EXPECT_TRUE(off.inspect({{"x", at(0)}}, answers_of({{"x"}, {}}), kSets, at(1)).empty())
      << "what others have asked for";
}

TEST(StallInspector, AsksOncePerPeriodAboutTheOldest) {
  StallInspector inspector(10, 0);
  const Pending pending = {{"young", at(5)}, {"old", at(0)}};
  EXPECT_EQ(inspector.next_check(pending), at(10));
  EXPECT_TRUE(inspector.should_ask(pending, at(10)));
  EXPECT_FALSE(inspector.should_ask(pending, at(15)));
  EXPECT_EQ(inspector.next_check(pending), at(20));
  EXPECT_TRUE(inspector.should_ask(pending, at(20)));
}

TEST(StallInspector, AsksNothingInAPeriodInWhichAnotherRankHasAsked) {
  StallInspector inspector(10, 0);
  const Pending pending = {{"x", at(1)}};
  inspector.answered(at(10));
  EXPECT_FALSE(inspector.should_ask(pending, at(19)));
  EXPECT_TRUE(inspector.should_ask(pending, at(20)));
}

TEST(StallInspector, AsksWhenTheLimitOfFailureIsReached) {
  StallInspector inspector(60, 100);
  const Pending pending = {{"x", at(0)}};
  EXPECT_TRUE(inspector.should_ask(pending, at(60)));
  EXPECT_EQ(inspector.next_check(pending), at(100)) << "not a whole warning period later";
  EXPECT_TRUE(inspector.should_ask(pending, at(100)));
  EXPECT_EQ(inspector.next_check(pending), at(160)) << "it was not fatal: go on warning";
  EXPECT_EQ(StallInspector(0, 3).next_check({{"x", at(1)}}), at(4)) << "failure alone";
}

TEST(StallInspector, NamesWhoHasAndWhoHasNotSubmitted) {
  const StallInspector inspector(10, 30);
  const Pending pending = {{"a", at(5)}, {"b", at(0)}, {"fresh", at(15)}};
  const auto stalls =
      inspector.inspect(pending, answers_of({{"a", "b", "fresh"}, {"b"}, {"a"}}), kSets, at(20));
  ASSERT_EQ(stalls.size(), 2U);
  EXPECT_EQ(stalls[0].name, "b") << "oldest first";
  EXPECT_EQ(stalls[0].submitted, (std::vector<int>{0, 1}));
  EXPECT_EQ(stalls[0].missing, (std::vector<int>{2}));
  EXPECT_DOUBLE_EQ(stalls[0].waited_s, 20);
  EXPECT_EQ(stalls[1].missing, (std::vector<int>{1}));
  EXPECT_FALSE(inspector.is_fatal(stalls[0]));
  const auto later = inspector.inspect(pending, answers_of({{"b"}, {}}), kSets, at(30));
  EXPECT_TRUE(inspector.is_fatal(later[0]));
}

TEST(StallInspector, OnlyMembersOfTheProcessSetThatHaveNotJoinedCanBeMissing) {
  ProcessSetTable sets(4);
  const std::uint32_t id = sets.add({1, 3});
  const std::string label = label_of(id, "x");
  const StallInspector inspector(10, 0);
  const auto stalls = inspector.inspect({{label, at(0), id}, {"y", at(1)}},
                                        answers_of({{"join"}, {label, "y"}, {"x"}, {"x"}}),
                                        sets,
                                        at(20));
  ASSERT_EQ(stalls.size(), 2U);
  EXPECT_EQ(stalls[0].submitted, std::vector<int>{1});
  EXPECT_EQ(stalls[0].missing, std::vector<int>{3});
  EXPECT_EQ(stalls[1].missing, (std::vector<int>{2, 3}));
}

/// Of a name beyond the end of an incomplete list nobody knows who has submitted it.
TEST(StallInspector, NothingIsSaidAboutNamesThatHadNoRoom) {
  const StallInspector inspector(10, 0);
  Answers answers = answers_of({{"a"}, {}, {}});
  const Pending pending = {{"a", at(0)}, {"b", at(1)}};
  EXPECT_EQ(inspector.inspect(pending, answers, kSets, at(20)).size(), 2U);
  answers.complete = false;
  const auto stalls = inspector.inspect(pending, answers, kSets, at(20));
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_EQ(stalls[0].name, "a");
}

TEST(StallInspector, SaysWhatTheMissingRanksWaitForAndTheOthersDoNot) {
  Stall stall;
  stall.name = "x";
  stall.submitted = {0};
  stall.missing = {1, 2};
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
  stall.submitted = {};  // a message: nobody knows who waits for what
  expect_parts(stall_text({stall}, rows[0].answers), {"for rank(s) 1, 2. Do all"});
}

TEST(StallInspector, AJobReportsATensorOnceAndFewTensors) {
  std::vector<Stall> stalls(1000);
  for (std::size_t i = 0; i < stalls.size(); ++i) {
    stalls[i].name = "t" + std::to_string(i);
    stalls[i].submitted = {static_cast<int>(i % 2), 2};
    for (int rank = 3; rank < 1000; ++rank) {
      stalls[i].missing.push_back(rank);
    }
  }
  stalls[4].submitted = {};  // a message
  stalls[2].missing = {};
  EXPECT_TRUE(stalls_to_report({stalls[0]}, 2).empty());
  const auto mine = stalls_to_report(stalls, 1);
  ASSERT_EQ(mine.size(), 501U);
  EXPECT_EQ(mine[0].name, "t1");
  EXPECT_EQ(mine[2].name, "t4");
  const std::string text = stall_text(mine, {});
  expect_parts(text,
               {"for rank(s) 3 to 999; rank(s) 1, 2 have submitted it; tensor 't3' has",
                "; 495 more tensors wait. Do all"});
  EXPECT_LT(text.size(), 700U);
}

TEST(StallInspector, TextAndJson) {
  Stall stall;
  stall.name = "conv\"1\"\\w\n";
  stall.waited_s = 61.04;
  stall.submitted = {0, 2};
  stall.missing = {1, 3};
  expect_parts(stall_text({stall}, {}),
               {"has waited 61.0 s for rank(s) 1, 3; rank(s) 0, 2 have submitted it"});
  EXPECT_EQ(stall_json(stall),
            R"({"tensor": "conv\"1\"\\w\u000a", "waited_s": 61.0, "missing_ranks": [1, 3], )"
            R"("submitted_ranks": [0, 2]})");
}

}  // namespace
}  // namespace aiacc
