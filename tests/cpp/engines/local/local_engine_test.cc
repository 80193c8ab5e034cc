// What is special about LocalEngine; what all engines promise is in engine_suite_test.cc.

#include "csrc/engines/local/local_engine.h"

#include <memory>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

TEST(LocalEngineTest, RefusesMoreThanOneRank) {
  EngineContext context;
  context.size = 2;
  EXPECT_THROW(LocalEngine{context}, Error);
}

TEST(LocalEngineTest, StaysAbortedAloneAmongItsSplits) {
  LocalEngine engine{EngineContext()};
  const std::unique_ptr<Engine> part = engine.split({0}, 3);
  part->abort(Status(Code::kPeerLost, "first"));
  part->abort(Status(Code::kInternal, "second"));
  float value = 1;
  const Status status = status_of([&] { part->broadcast(0, &value, sizeof value, 0); });
  EXPECT_EQ(Code::kPeerLost, status.code());
  EXPECT_EQ("first", status.message());
  engine.broadcast(0, &value, sizeof value, 0);
}

}  // namespace
}  // namespace aiacc
