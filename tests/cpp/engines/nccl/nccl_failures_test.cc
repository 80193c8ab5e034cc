#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "csrc/base/env.h"
#include "csrc/base/event.h"
#include "csrc/engines/nccl/nccl_engine.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/nccl_world.h"

namespace aiacc {
namespace {

TEST(NcclFailures, AbortEndsARankThatConnects) {
  NcclWorld world(2);
  const auto engine = world.engine(0, 1);
  const auto device = engine->device(0);
  std::thread connecting([&] {
    const Device::Scope scope(*device);
    float value = 1;
    const Status status = status_of([&] { engine->all_reduce(0, &value, &value, 1, {}); });
    EXPECT_NE(Code::kOk, status.code()) << "rank 1 never came";
  });
  engine->abort({Code::kShutdown, "the job ends"});
  connecting.join();
}

/// A rank whose thread is still in another set's operation when the others connect, for longer than
/// communicators may take to come up. `accepts`: that it connects others there, these ranks among
/// them.
void connect_with_a_busy_rank(bool accepts) {
  constexpr std::chrono::milliseconds kConnectTimeout{300};
  NcclWorld world(3, kNcclHeaderVersion, 1, kConnectTimeout);
  with_nccl(world, 2, [&](int rank, NcclEngine& engine) {
    if (rank == 1) {
      Event interrupt;
      std::thread other([&] {
        if (accepts) {
          EXPECT_EQ(Code::kShutdown, status_of([&] {
                                       world.tcp.connector(rank).establish_in_unit(
                                           {{2, ChannelKind::kPair}}, interrupt.fd());
                                     }).code());
        }
      });
      std::this_thread::sleep_for(3 * kConnectTimeout);
      interrupt.set();
      other.join();
    }
    float value = 1;
    engine.all_reduce(0, &value, &value, 1, {});
    EXPECT_TRUE(engine.quiesce(soon()));
    EXPECT_EQ(3, value);
  });
}

TEST(NcclFailures, ARankThatIsBusyIsWaitedFor) {
  connect_with_a_busy_rank(false);
  connect_with_a_busy_rank(true);
}

TEST(NcclFailures, ACommunicatorThatDoesNotComeUpIsGivenUp) {
  NcclWorld world(2);
  EngineContext context = world.context(0, 1);
  context.size = 1;  // so that nobody asks for ids
  context.connect_timeout_s = 0.05;
  world.nccl.set_polls(1 << 30);
  NcclEngine engine(world.cuda.driver(), world.nccl.api(), context);
  const auto device = engine.device(0);
  const Device::Scope scope(*device);
  float value = 1;
  const auto call = [&] { engine.all_reduce(0, &value, &value, 1, {}); };
  const Status status = status_of(call);
  expect_error(status, Code::kTimeout, {"AIACC_CONNECT_TIMEOUT_S"});
  EXPECT_EQ(status.message(), status_of(call).message()) << "what is there by half is not used";
}

TEST(NcclFailures, AsynchronousErrorsAreFound) {
  for (const auto& [result, code] : {std::pair{kNcclRemoteError, Code::kPeerLost},
                                     std::pair{kNcclSystemError, Code::kPeerLost},
                                     std::pair{kNcclInternalError, Code::kEngine}}) {
    NcclWorld world(1);
    with_nccl(world, 1, [&, error = result, expected = code](int, NcclEngine& engine) {
      float value = 1;
      engine.all_reduce(0, &value, &value, 1, {});
      engine.check();
      ASSERT_TRUE(engine.quiesce(soon()));
      world.nccl.break_all_with(error);
      expect_error(status_of([&] { engine.check(); }), expected, {"[nccl]"});
    });
  }
}

TEST(NcclFailures, OneGpuForAnEngine) {
  FakeCuda cuda(3);
  FakeNccl nccl(cuda);
  EngineContext context;
  context.device = 2;
  {
    NcclEngine engine(cuda.driver(), nccl.api(), context);
    EXPECT_EQ(2, engine.device(-1)->ordinal()) << "as proposed";
  }
  NcclEngine engine(cuda.driver(), nccl.api(), context);
  EXPECT_EQ(Code::kInvalidArgument, status_of([&] { engine.device(3); }).code());
  EXPECT_EQ(1, engine.device(1)->ordinal());
  EXPECT_EQ(1, engine.device(-1)->ordinal());
  EXPECT_EQ(Code::kInternal, status_of([&] { engine.device(0); }).code());
  EXPECT_EQ(0, engine.open(0)->ordinal()) << "for another engine of the rank";
  EXPECT_EQ(0, engine.split({0}, 1)->device(0)->ordinal());
  EXPECT_EQ(1, engine.split({0}, 2)->device(-1)->ordinal()) << "the first one";
}

TEST(NcclFailures, LanesThatWouldNotBeSafeAreRefused) {
  FakeCuda cuda(1);
  FakeNccl nccl(cuda, nccl_version_code(2, 28, 9));
  EngineContext context;
  context.lanes = 2;
  context.nccl_in_use = true;
  const std::string before = library_variable("NCCL_LAUNCH_ORDER_IMPLICIT");
  ASSERT_EQ("", before);
  EXPECT_EQ(Code::kUnsupported,
            status_of([&] { NcclEngine(cuda.driver(), nccl.api(), context); }).code());
  EXPECT_EQ("", library_variable("NCCL_LAUNCH_ORDER_IMPLICIT"));
  context.nccl_in_use = false;
  const NcclEngine engine(cuda.driver(), nccl.api(), context);
  EXPECT_EQ("1", library_variable("NCCL_LAUNCH_ORDER_IMPLICIT"));
}

}  // namespace
}  // namespace aiacc
