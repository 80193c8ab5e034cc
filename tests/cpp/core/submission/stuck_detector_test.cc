#include "csrc/core/submission/stuck_detector.h"

#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

std::unique_ptr<Operation> operation_of(OpKind kind, bool named) {
  auto operation = std::make_unique<Operation>();
  operation->request = make_request("x.noname.0.0", kind, {1});
  operation->request.cacheable = named;
  return operation;
}
std::unique_ptr<Operation> unnamed() { return operation_of(OpKind::kAllreduce, false); }

TEST(StuckDetector, StuckWhileTheOnlyThreadWaitsForSomethingUndecided) {
  const struct {
    const char* what;
    OpKind kind;
    bool named;  ///< by the user
    bool dispatched;
    bool done;
    bool stuck;
    bool after_long;  ///< whether it is stuck after a long wait
  } rows[] = {{"an automatic name", OpKind::kAllreduce, false, false, false, true, true},
              {"it is on its way", OpKind::kAllreduce, false, true, false, false, false},
              {"it has failed", OpKind::kAllreduce, false, false, true, false, false},
              {"a name that the user gave", OpKind::kAllreduce, true, false, false, false, true},
              {"that on its way", OpKind::kAllreduce, true, true, false, false, false},
              {"a join", OpKind::kJoin, false, false, false, false, false}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    StuckDetector detector;
    EXPECT_FALSE(detector.all_stuck()) << "nobody waits";
    const auto operation = operation_of(row.kind, row.named);
    operation->dispatched.store(row.dispatched);
    operation->done.store(row.done);
    detector.note();
    {
      const StuckDetector::Wait wait(detector, *operation);
      EXPECT_EQ(row.stuck, detector.all_stuck());
      EXPECT_EQ(row.after_long, detector.all_stuck_since(wait.since()));
      EXPECT_FALSE(detector.all_stuck_since(wait.since() - std::chrono::nanoseconds(1)));
    }
    EXPECT_FALSE(detector.all_stuck());
  }
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
