#include "csrc/core/submission/stuck_detector.h"

#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

std::unique_ptr<Operation> unnamed(OpKind kind = OpKind::kAllreduce) {
  auto operation = std::make_unique<Operation>();
  operation->request = make_request("x.noname.0.0", kind, {1});
  operation->request.cacheable = false;
  return operation;
}

TEST(StuckDetector, StuckWhileTheOnlyThreadWaitsForSomethingUndecided) {
  StuckDetector submitters;
  EXPECT_FALSE(submitters.all_stuck()) << "nobody waits";
  const auto operation = unnamed();
  submitters.note();
  {
    const StuckDetector::Wait wait(submitters, *operation);
    EXPECT_TRUE(submitters.all_stuck());
    operation->dispatched.store(true);
    EXPECT_FALSE(submitters.all_stuck()) << "it is on its way";
    operation->dispatched.store(false);
    operation->done.store(true);
    EXPECT_FALSE(submitters.all_stuck()) << "it has failed";
    operation->done.store(false);
  }
  EXPECT_FALSE(submitters.all_stuck());
}

TEST(StuckDetector, NamesThatUsersGaveAndJoinsDoNotCount) {
  StuckDetector submitters;
  submitters.note();
  const auto named = unnamed();
  named->request.cacheable = true;
  const auto join = unnamed(OpKind::kJoin);
  for (const auto* operation : {&named, &join}) {
    const StuckDetector::Wait wait(submitters, **operation);
    EXPECT_FALSE(submitters.all_stuck());
  }
}

TEST(StuckDetector, WhoWaitsForLongForAGivenNameIsStuckToo) {
  StuckDetector submitters;
  submitters.note();
  const auto named = unnamed();
  named->request.cacheable = true;
  const StuckDetector::Wait wait(submitters, *named);
  EXPECT_TRUE(submitters.all_stuck_since(wait.since()));
  EXPECT_FALSE(submitters.all_stuck_since(wait.since() - std::chrono::nanoseconds(1)));
  named->dispatched.store(true);
  EXPECT_FALSE(submitters.all_stuck_since(wait.since())) << "it is on its way";
  const auto join = unnamed(OpKind::kJoin);
  StuckDetector joining;
  joining.note();
  const StuckDetector::Wait joined(joining, *join);
  EXPECT_FALSE(joining.all_stuck_since(joined.since()));
}

TEST(StuckDetector, AnotherThreadThatSubmitsMayStillDoSo) {
  StuckDetector submitters;
  submitters.note();
  submitters.note();
  const auto operation = unnamed();
  const StuckDetector::Wait wait(submitters, *operation);
  EXPECT_TRUE(submitters.all_stuck());
  std::thread([&] { submitters.note(); }).join();
  EXPECT_FALSE(submitters.all_stuck());
}

/// The thread that made it has not submitted yet: two threads may begin in any order.
TEST(StuckDetector, ARankIsNotStuckWithoutTheThreadThatMadeIt) {
  StuckDetector submitters;
  const auto operation = unnamed();
  std::thread([&] {
    submitters.note();
    const StuckDetector::Wait wait(submitters, *operation);
    EXPECT_FALSE(submitters.all_stuck());
    EXPECT_FALSE(submitters.all_stuck_since(wait.since()));
  }).join();
}

TEST(StuckDetector, AThreadThatOnlyWaitsIsNotTheOneThatSubmits) {
  StuckDetector submitters;
  const auto operation = unnamed();
  submitters.note();
  std::thread([&] {
    const StuckDetector::Wait wait(submitters, *operation);
    EXPECT_FALSE(submitters.all_stuck());
  }).join();
}

TEST(StuckDetector, EveryJobCountsForItself) {
  StuckDetector first;
  first.note();
  StuckDetector second;
  const auto operation = unnamed();
  const StuckDetector::Wait wait(second, *operation);
  EXPECT_FALSE(second.all_stuck());
  second.note();
  const StuckDetector::Wait again(second, *operation);
  EXPECT_TRUE(second.all_stuck());
}

}  // namespace
}  // namespace aiacc
