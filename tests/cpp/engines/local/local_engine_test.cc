#include "csrc/engines/local/local_engine.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/engines/engine_checks.h"

namespace aiacc {
namespace {

EngineContext alone(int lanes) {
  EngineContext context;
  context.lanes = lanes;
  return context;
}

TEST(LocalEngineTest, CopiesWhatIsNotInPlace) {
  LocalEngine engine(alone(2));
  EXPECT_EQ(2, engine.lanes());
  for (int lane = 0; lane <= engine.express_lane(); ++lane) {
    const std::vector<float> in = {1, 2, 3};
    std::vector<float> out(3);
    engine.all_reduce(lane, in.data(), out.data(), 3, {DataType::kFloat32, ReduceOp::kSum});
    EXPECT_EQ(in, out);
    out = {7, 8, 9};
    engine.all_reduce(lane, out.data(), out.data(), 3, {DataType::kFloat32, ReduceOp::kMax});
    EXPECT_EQ((std::vector<float>{7, 8, 9}), out);
    engine.all_gather(lane, in.data(), out.data(), {2 * sizeof(float)});
    EXPECT_EQ((std::vector<float>{1, 2, 9}), out);
    engine.broadcast(lane, out.data(), 3 * sizeof(float), 0);
    EXPECT_EQ((std::vector<float>{1, 2, 9}), out);
    engine.all_reduce(lane, nullptr, nullptr, 0, {DataType::kFloat32, ReduceOp::kSum});
  }
}

TEST(LocalEngineTest, ExchangesWithItself) {
  LocalEngine engine(alone(2));
  const std::unique_ptr<Engine> part = engine.split({0}, 3);
  EXPECT_EQ(2, part->lanes());
  for (Engine* one : {static_cast<Engine*>(&engine), part.get()}) {
    for (int lane = 0; lane <= one->express_lane(); ++lane) {
      check_every_operation(*one, lane, 0, 1);
    }
  }
  part->abort(Status(Code::kShutdown, "stop now"));
  float value = 1;
  EXPECT_THROW(part->broadcast(0, &value, sizeof value, 0), Error);
  engine.broadcast(0, &value, sizeof value, 0);
}

TEST(LocalEngineTest, RefusesMoreThanOneRank) {
  EngineContext context = alone(1);
  context.size = 2;
  EXPECT_THROW(LocalEngine{context}, Error);
}

TEST(LocalEngineTest, StaysAborted) {
  LocalEngine engine(alone(1));
  engine.abort(Status(Code::kPeerLost, "first"));
  engine.abort(Status(Code::kInternal, "second"));
  float value = 1;
  try {
    engine.broadcast(0, &value, sizeof value, 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kPeerLost, error.code());
    EXPECT_EQ(std::string("first"), error.what());
  }
}

}  // namespace
}  // namespace aiacc
