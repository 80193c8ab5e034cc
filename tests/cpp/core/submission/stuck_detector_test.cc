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
  StuckDetector detector;
  EXPECT_FALSE(detector.all_stuck()) << "nobody waits";
  const auto operation = unnamed();
  detector.note();
  {
    const StuckDetector::Wait wait(detector, *operation);
    EXPECT_TRUE(detector.all_stuck());
    operation->dispatched.store(true);
    EXPECT_FALSE(detector.all_stuck()) << "it is on its way";
    operation->dispatched.store(false);
    operation->done.store(true);
    EXPECT_FALSE(detector.all_stuck()) << "it has failed";
    operation->done.store(false);
  }
  EXPECT_FALSE(detector.all_stuck());
}

TEST(StuckDetector, NamesThatUsersGaveAndJoinsDoNotCount) {
  StuckDetector detector;
  detector.note();
  const auto named = unnamed();
  named->request.cacheable = true;
  const auto join = unnamed(OpKind::kJoin);
  for (const auto* operation : {&named, &join}) {
    const StuckDetector::Wait wait(detector, **operation);
    EXPECT_FALSE(detector.all_stuck());
  }
}

TEST(StuckDetector, WhoWaitsForLongForAGivenNameIsStuckToo) {
  StuckDetector detector;
  detector.note();
  const auto named = unnamed();
  named->request.cacheable = true;
  const StuckDetector::Wait wait(detector, *named);
  EXPECT_TRUE(detector.all_stuck_since(wait.since()));
  EXPECT_FALSE(detector.all_stuck_since(wait.since() - std::chrono::nanoseconds(1)));
  named->dispatched.store(true);
  EXPECT_FALSE(detector.all_stuck_since(wait.since())) << "it is on its way";
  const auto join = unnamed(OpKind::kJoin);
  StuckDetector joining;
  joining.note();
  const StuckDetector::Wait joined(joining, *join);
  EXPECT_FALSE(joining.all_stuck_since(joined.since()));
}

TEST(StuckDetector, AnotherThreadThatSubmitsMayStillDoSo) {
  StuckDetector detector;
  detector.note();
  detector.note();
  const auto operation = unnamed();
  const StuckDetector::Wait wait(detector, *operation);
  EXPECT_TRUE(detector.all_stuck());
  std::thread([&] { detector.note(); }).join();
  EXPECT_FALSE(detector.all_stuck());
}

/// The thread that made it has not submitted yet: two threads may begin in any order.
TEST(StuckDetector, ARankIsNotStuckWithoutTheThreadThatMadeIt) {
  StuckDetector detector;
  const auto operation = unnamed();
  std::thread([&] {
    detector.note();
    const StuckDetector::Wait wait(detector, *operation);
    EXPECT_FALSE(detector.all_stuck());
    EXPECT_FALSE(detector.all_stuck_since(wait.since()));
  }).join();
}

TEST(StuckDetector, AThreadThatOnlyWaitsIsNotTheOneThatSubmits) {
  StuckDetector detector;
  const auto operation = unnamed();
  detector.note();
  std::thread([&] {
    const StuckDetector::Wait wait(detector, *operation);
    EXPECT_FALSE(detector.all_stuck());
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
