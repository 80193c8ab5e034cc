#include "csrc/engines/local/local_engine.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"

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
