// What every engine for GPUs promises, by one list of cases: NCCL, and two levels with NCCL or
// lanes of the CPU between the hosts.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/hierarchical/hierarchical_device_engine.h"
#include "csrc/engines/members.h"
#include "csrc/engines/staged/host_staged_engine.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/fakes/fake_engine.h"
#include "tests/cpp/support/nccl_world.h"
#include "tests/cpp/support/process.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {
namespace {

constexpr int kLanes = 2;
constexpr int kHostLanes = 3;
constexpr DeviceReduction kDeviceSum{DataType::kFloat32, ReduceOp::kSum};

enum class Between { kOneLevel, kNccl, kTcp, kFake };

/// Hosts of the ranks, what is between them, and how gtest calls that.
struct Hosts {
  const char* name;
  std::vector<int> of;
  Between between = Between::kNccl;
  int size() const { return static_cast<int>(of.size()); }
};

/// NCCL among all ranks, or inside the hosts, and NCCL or lanes of the CPU between them.
std::unique_ptr<DeviceEngine> connect(NcclWorld& world,
                                      const Hosts& hosts,
                                      int rank,
                                      const std::shared_ptr<FakeHub>& hub) {
  if (hosts.between == Between::kOneLevel) {
    return world.engine(rank, kLanes);
  }
  EngineContext context = world.context(rank, kHostLanes);
  context.host_of = hosts.of;
  HostEngineFactory between;
  if (hosts.between == Between::kTcp) {
    between = [](const EngineContext& job) { return std::make_unique<TcpEngine>(job); };
  } else if (hosts.between == Between::kFake) {
    between = [&](const EngineContext& job) { return std::make_unique<FakeEngine>(hub, job.rank); };
  }
  return create_hierarchical_device_engine(world.engine(rank, kLanes), context, between);
}

class DeviceEngineTest : public testing::TestWithParam<Hosts> {
 protected:
  const Hosts& hosts() const { return GetParam(); }
  int size() const { return hosts().size(); }
  template <class Body>
  void with_engines(Body body) {
    const auto hub = std::make_shared<FakeHub>(size(), kHostLanes);
    with_gpu_engines(world_, [&](int rank) { return connect(world_, hosts(), rank, hub); }, body);
  }

  NcclWorld world_{GetParam().size()};
};

TEST_P(DeviceEngineTest, EveryReductionOfEveryType) {
  with_engines([&](int rank, DeviceEngine& engine) {
    FinishingEngine finishing(engine, rank);
    for (const DataType dtype : all_dtypes()) {
      for (const ReduceOp op : engine_ops()) {
        if (!engine.refusal({dtype, op}).empty()) {
          EXPECT_EQ(2U, size_of(dtype));
          continue;
        }
        for (const std::size_t count : {0, 1, 2, 101, 1001}) {
          const int lane = static_cast<int>(dtype) % kLanes;
          check_all_reduce(finishing, lane, rank, size(), count, dtype, op);
        }
        check_reduce_scatter(finishing, 0, rank, uneven_counts(size(), 3), dtype, op);
      }
    }
  });
}

TEST_P(DeviceEngineTest, LargeBuffers) {
  with_engines([&](int rank, DeviceEngine& engine) {
    FinishingEngine finishing(engine, rank);
    for (const std::size_t count : {100'001, 200'000}) {
      check_all_reduce(finishing, 1, rank, size(), count, DataType::kFloat32, ReduceOp::kSum);
      check_broadcast(finishing, 0, rank, size() - 1, count);
    }
  });
}

TEST_P(DeviceEngineTest, TheOtherOperations) {
  with_engines([&](int rank, DeviceEngine& engine) {
    FinishingEngine finishing(engine, rank);
    const std::vector<std::size_t> even(hosts().of.size(), 33);
    for (int lane = 0; lane <= kLanes; ++lane) {  // also the express lane
      check_every_operation(finishing, lane, rank, size());
      check_reduce_scatter(finishing, lane, rank, even, DataType::kFloat32, ReduceOp::kSum);
      check_broadcast(finishing, lane, rank, 0, 0);
      check_all_to_all(finishing, lane, rank, size(), 0);
      for (int root = 0; root < size(); ++root) {
        check_broadcast(finishing, lane, rank, root, 4096);
      }
      std::vector<int> all(even.size());
      finishing.all_gather(
          lane, &rank, all.data(), std::vector<std::size_t>(all.size(), sizeof rank));
      EXPECT_EQ(all_ranks(size()), all);
    }
  });
}

/// With devices that run one operation at a time, in the order of issue, ranks that issue in
/// different orders would wait for each other for ever.
TEST_P(DeviceEngineTest, QueuesTheSameOrderEverywhere) {
  world_.nccl.set_resident(1);
  with_engines([&](int rank, DeviceEngine& engine) {
    std::vector<std::vector<float>> units(12, std::vector<float>(240));
    for (std::size_t i = 0; i < units.size(); ++i) {
      std::fill(units[i].begin(), units[i].end(), static_cast<float>(rank + 1) * float(i));
      engine.all_reduce(static_cast<int>(i) % kLanes,
                        units[i].data(),
                        units[i].data(),
                        units[i].size(),
                        kDeviceSum);
    }
    ASSERT_TRUE(engine.quiesce(soon()));
    const int sum = size() * (size() + 1) / 2;
    for (std::size_t i = 0; i < units.size(); ++i) {
      EXPECT_EQ(std::vector<float>(240, float(sum) * float(i)), units[i]);
    }
  });
}

TEST_P(DeviceEngineTest, RegistersTheBufferOfALaneWithEveryPartThatUsesIt) {
  if (hosts().between == Between::kTcp && hosts().of == std::vector<int>{0, 1}) {
    GTEST_SKIP() << "NCCL has nothing to do";
  }
  std::atomic<int> registered{0};
  with_engines([&](int, DeviceEngine& engine) {
    void* memory = engine.buffer(0, 1000);
    EXPECT_NE(memory, engine.buffer(0, 500)) << "they take turns";
    EXPECT_EQ(memory, engine.buffer(0, 500));
    EXPECT_NE(memory, engine.buffer(1, 1000));
    engine.all_reduce(0, memory, memory, 100, kDeviceSum);
    ASSERT_TRUE(engine.quiesce(soon()));
    registered = std::max(registered.load(), world_.nccl.registrations());
  });
  EXPECT_GE(registered.load(), size());
}

/// Into two halves, and those into single ranks.
TEST_P(DeviceEngineTest, SplitsShareTheStreams) {
  with_engines([&](int rank, DeviceEngine& engine) {
    std::vector<int> members;
    for (int member = rank % 2; member < size(); member += 2) {
      members.push_back(member);
    }
    const auto half = engine.split(members, static_cast<std::uint32_t>(3 + rank % 2));
    half->device(rank);
    EXPECT_EQ(engine.stream(1), half->stream(1));
    FinishingEngine finishing(*half, rank / 2);
    check_every_operation(finishing, 0, rank / 2, static_cast<int>(members.size()));
    const auto alone = half->split({rank / 2}, static_cast<std::uint32_t>(10 + rank));
    alone->device(rank);
    FinishingEngine single(*alone, 0);
    check_every_operation(single, 1, 0, 1);
    FinishingEngine whole(engine, rank);
    check_every_operation(whole, 1, rank, size());
  });
}

/// All its parts move to the other GPU, and the two engines do not disturb each other.
TEST_P(DeviceEngineTest, OneForEveryGpuOfARank) {
  with_engines([&](int rank, DeviceEngine& engine) {
    const std::unique_ptr<DeviceEngine> part = engine.split(all_ranks(size()), 3);
    DeviceEngine& other = *part;
    const auto device = other.device((rank + 1) % size());
    EXPECT_EQ(size() == 1, engine.stream(0) == other.stream(0));
    for (int times = 0; times < 2; ++times) {
      FinishingEngine here(engine, rank);
      check_every_operation(here, 0, rank, size());
      const Device::Scope scope(*device);
      FinishingEngine there(other, rank);
      check_every_operation(there, 0, rank, size());
    }
  });
}

/// As a hierarchy issues a group: all first steps, the network, all last steps.
TEST_P(DeviceEngineTest, AGroupGivesWhatItsCallsGive) {
  with_engines([&](int rank, DeviceEngine& engine) {
    for (int times = 0; times < 3; ++times) {
      std::vector<std::vector<float>> units(kLanes, std::vector<float>(1001));
      for (int lane = 0; lane < kLanes; ++lane) {
        auto& unit = units[static_cast<std::size_t>(lane)];
        std::fill(unit.begin(), unit.end(), static_cast<float>((rank + 1) * (lane + 1)));
      }
      engine.begin_group();
      for (int lane = 0; lane < kLanes; ++lane) {
        auto& unit = units[static_cast<std::size_t>(lane)];
        engine.all_reduce(lane, unit.data(), unit.data(), unit.size(), {});
      }
      engine.end_group();
      ASSERT_TRUE(engine.quiesce(soon()));
      for (int lane = 0; lane < kLanes; ++lane) {
        const float sum = static_cast<float>(size() * (size() + 1) / 2 * (lane + 1));
        EXPECT_EQ(std::vector<float>(1001, sum), units[static_cast<std::size_t>(lane)]);
      }
    }
  });
}

/// Rank 0 never comes: whoever waits for it, inside its host or between hosts, is released.
TEST_P(DeviceEngineTest, AnAbortEndsWhatWaitsForARankThatNeverComes) {
  with_engines([&](int rank, DeviceEngine& engine) {
    std::vector<std::vector<float>> data(2, std::vector<float>(1000, 1));  // of each lane
    const auto reduce = [&](int lane) {
      engine.all_reduce(lane, data[lane].data(), data[lane].data(), data[lane].size(), kDeviceSum);
    };
    reduce(0);
    reduce(1);
    ASSERT_TRUE(engine.quiesce(soon()));
    if (rank != 0) {
      reduce(1);
      reduce(0);
      EXPECT_FALSE(engine.quiesce(Clock::now()));
    }
    engine.abort({Code::kPeerLost, "rank 0 is gone"});
    engine.abort({Code::kEngine, "a later reason"});
    EXPECT_TRUE(engine.quiesce(soon()));
    expect_error(status_of([&] { reduce(0); }), Code::kPeerLost, {"rank 0 is gone"});
    expect_error(status_of([&] { engine.check(); }), Code::kPeerLost);
    expect_error(status_of([&] { engine.split({rank}, 3); }), Code::kPeerLost);
  });
}

/// What is special about two levels.
class HierarchicalDeviceTest : public DeviceEngineTest {};

TEST_P(HierarchicalDeviceTest, NarrowFloats) {
  with_engines([&](int, DeviceEngine& engine) {
    std::vector<std::uint16_t> ones(100, 0x3f80);  // bfloat16
    const DeviceReduction reduction{DataType::kFloat32, ReduceOp::kSum, WireFormat::kBFloat16};
    EXPECT_EQ("", engine.refusal(reduction));
    engine.all_reduce(0, ones.data(), ones.data(), ones.size(), reduction);
    ASSERT_TRUE(engine.quiesce(soon()));
    const auto sum = static_cast<float>(size());
    std::uint32_t bits = 0;
    std::memcpy(&bits, &sum, sizeof bits);
    EXPECT_EQ(std::vector<std::uint16_t>(100, static_cast<std::uint16_t>(bits >> 16)), ones);
    const std::string refusal =
        engine.refusal({DataType::kFloat32, ReduceOp::kSum, WireFormat::kFloat8E4M3});
    EXPECT_NE(std::string::npos, refusal.find("float8_e4m3")) << refusal;
    EXPECT_EQ(
        "wire format int8_blocks (expected a format of 16 or 32 bits); set "
        "AIACC_GPU_ENGINE=nccl for it, or use Compression.bf16",
        engine.refusal({DataType::kFloat32, ReduceOp::kSum, WireFormat::kInt8Blocks}));
  });
}

const auto kTwoLevels = testing::Values(Hosts{"OneHost", {4, 4, 4}},
                                        Hosts{"OneRankEach", {0, 1}},
                                        Hosts{"TwoAndTwo", {0, 0, 1, 1}},
                                        Hosts{"RoundRobin", {0, 1, 0, 1}},
                                        Hosts{"ThreeAndOne", {0, 0, 0, 1}},
                                        Hosts{"CrossedThreeAndTwo", {0, 1, 1, 0, 0}},
                                        Hosts{"OneHostOverTcp", {4, 4, 4}, Between::kTcp},
                                        Hosts{"OneRankEachOverTcp", {0, 1}, Between::kTcp},
                                        Hosts{"TwoAndTwoOverTcp", {0, 0, 1, 1}, Between::kTcp},
                                        Hosts{"CrossedOverTcp", {0, 1, 1, 0, 0}, Between::kTcp},
                                        Hosts{"ThreeAndTwoOver", {0, 0, 1, 1, 1}, Between::kFake});
const auto kOneLevel = testing::Values(Hosts{"Alone", {0}, Between::kOneLevel},
                                       Hosts{"Two", {0, 0}, Between::kOneLevel},
                                       Hosts{"Three", {0, 0, 0}, Between::kOneLevel},
                                       Hosts{"Four", {0, 0, 0, 0}, Between::kOneLevel});
const auto name_of_hosts = [](const auto& test) { return std::string(test.param.name); };
INSTANTIATE_TEST_SUITE_P(Nccl, DeviceEngineTest, kOneLevel, name_of_hosts);
INSTANTIATE_TEST_SUITE_P(Hosts, DeviceEngineTest, kTwoLevels, name_of_hosts);
INSTANTIATE_TEST_SUITE_P(Hosts, HierarchicalDeviceTest, kTwoLevels, name_of_hosts);

/// Two ranks, on a host each, with a fake network between them.
template <class Body>
void with_host_lanes(NcclWorld& world, int lanes, const FakeEngine::Before& before, Body body) {
  const auto hub = std::make_shared<FakeHub>(2, lanes);
  const auto make = [&](int rank) {
    return std::make_unique<HostStagedEngine>(std::make_unique<FakeEngine>(hub, rank, before),
                                              world.engine(rank, lanes)->split({rank}, 0),
                                              rank,
                                              2);
  };
  with_gpu_engines(world, make, body);
}

/// The network stands still on lane 0 until `open`.
struct SlowLane {
  std::atomic<bool> open{false};
  FakeEngine::Before before = [this](int lane, std::size_t) {
    yield_until([&] { return lane != 0 || open.load(); });
  };
};

TEST(HostStagedEngine, WhatIsOnTheNetworkDoesNotKeepTheNextFromBeingLaunched) {
  NcclWorld world(2);
  SlowLane slow_lane;
  std::atomic<int> overtaken{0};
  with_host_lanes(world, 2, slow_lane.before, [&](int, DeviceEngine& engine) {
    std::vector<std::vector<float>> units(12, std::vector<float>(100, 1.0F));
    for (std::size_t i = 0; i < units.size(); ++i) {  // a part on lane 0 each, which stands still
      engine.all_reduce(
          static_cast<int>(i % 2), units[i].data(), units[i].data(), units[i].size(), kDeviceSum);
    }
    std::vector<float> large(60'000, 1.0F);  // a part for each lane
    engine.all_reduce(1, large.data(), large.data(), large.size(), kDeviceSum);
    if (++overtaken == 2) {
      slow_lane.open = true;
    }
    ASSERT_TRUE(engine.quiesce(soon()));
    for (const auto& unit : units) {
      EXPECT_EQ(std::vector<float>(100, 2.0F), unit);
    }
    EXPECT_EQ(std::vector<float>(60'000, 2.0F), large);
  });
}

/// Nobody waits for lane 0: lane 1 is through with its unit before that goes on.
TEST(HostStagedEngine, UnitsOfDifferentLanesOverlap) {
  NcclWorld world(2);
  SlowLane slow_lane;
  std::atomic<int> through{0};
  with_host_lanes(world, 2, slow_lane.before, [&](int rank, DeviceEngine& engine) {
    std::vector<float> slow(10, 1.0F);
    std::vector<float> fast(10, 1.0F);
    std::vector<float> all(20, -1.0F);
    engine.all_gather(0, slow.data(), all.data(), {40, 40});
    engine.all_gather(1, fast.data(), all.data(), {40, 40});
    const CudaDriver& driver = world.cuda.driver();
    yield_until([&] { return driver.stream_query(engine.stream(1)) != kCudaNotReady; });
    EXPECT_EQ(kCudaNotReady, driver.stream_query(engine.stream(0))) << "rank " << rank;
    if (++through == 2) {
      slow_lane.open = true;
    }
    ASSERT_TRUE(engine.quiesce(soon()));
    EXPECT_EQ(std::vector<float>(20, 1.0F), all);
  });
}

TEST(HostStagedEngine, TheNumberOfThreadsIsConstant) {
  NcclWorld world(2);
  std::atomic<std::size_t> most{0};
  const auto before = [&](int, std::size_t) { most = std::max(most.load(), process_threads()); };
  std::atomic<int> arrived{0};
  with_host_lanes(world, 4, before, [&](int, DeviceEngine& engine) {
    std::vector<std::vector<float>> tensors(5, std::vector<float>(60'000));  // a part per lane
    const auto step = [&] {
      for (int lane = 0; lane <= 4; ++lane) {
        std::vector<float>& data = tensors[static_cast<std::size_t>(lane)];
        engine.all_reduce(lane, data.data(), data.data(), data.size(), kDeviceSum);
      }
      ASSERT_TRUE(engine.quiesce(soon()));
    };
    const auto meet = [&](int times) { await_all(arrived, times * 2); };
    step();  // makes streams, which are threads of the fake
    meet(1);
    const std::size_t threads = process_threads();
    most = 0;
    meet(2);
    for (int i = 0; i < 5; ++i) {
      step();
    }
    meet(3);
    EXPECT_EQ(threads, most.load());
    EXPECT_EQ(threads, process_threads());
    meet(4);
  });
}

/// A result that is none never looks like one: the stream stands still until the job aborts.
TEST(HostStagedEngine, AFailureOfTheNetworkShowsInCheck) {
  NcclWorld world(2);
  std::atomic<bool> fail{false};
  const auto before = [&](int, std::size_t) {
    if (fail.load()) {
      throw Error(Code::kPeerLost, "the network is gone");
    }
  };
  std::atomic<int> arrived{0};
  with_host_lanes(world, 1, before, [&](int, DeviceEngine& engine) {
    float value = 1;
    const auto reduce = [&] { engine.all_reduce(0, &value, &value, 1, kDeviceSum); };
    reduce();
    ASSERT_TRUE(engine.quiesce(soon()));
    engine.check();
    await_all(arrived, 2);
    fail = true;
    reduce();
    const Status status = first_error_of([&] { engine.check(); });
    EXPECT_EQ(Code::kPeerLost, status.code());
    EXPECT_EQ("the network is gone", status.message());
    EXPECT_FALSE(engine.quiesce(Clock::now()));
    EXPECT_EQ(2.0F, value);
    EXPECT_THROW(reduce(), Error);
    engine.abort({Code::kEngine, "a later reason"});
    EXPECT_TRUE(engine.quiesce(soon()));
  });
}

TEST(HierarchicalDeviceCreation, NeedsTheHostOfEveryRank) {
  NcclWorld world(2);
  expect_error(status_of([&] {
                 create_hierarchical_device_engine(world.engine(0, 1), world.context(0, 1), {});
               }),
               Code::kInvalidArgument,
               {"1 ranks are known (expected 2"});
}

}  // namespace
}  // namespace aiacc
