// Staged all-reduces that go straight through the slots of an engine.

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/engines/hierarchical/hierarchical_engine.h"
#include "csrc/engines/shm/shm_engine.h"
#include "tests/cpp/core/execution/gpu/staging_suite.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {
namespace {

constexpr std::size_t kUnit = std::size_t{512} << 10;
/// Floats of a unit that goes through the slots.
constexpr std::int64_t kLarge = kUnit / sizeof(float);

/// Coordinators of one host that share memory and stage tensors.
class StagingSlotsTest : public StagingSuite {
 protected:
  StagingSlotsTest() {
    world_.options.parameters.unit_bytes = kUnit;
    world_.make_engine = [](int, EngineContext* context, const std::shared_ptr<FakeHub>&) {
      return std::make_unique<ShmEngine>(*context);
    };
  }
  ~StagingSlotsTest() override { EXPECT_EQ(cuda_.registered(), 0U); }
};

Request sum_of(const std::string& name, std::int64_t count) {
  Request request = make_request(name, {count});
  request.prescale = 0.3;
  request.postscale = 1.7;
  return request;
}

/// As in host memory: nothing travels.
TEST_P(StagingSlotsTest, NothingIsCoded) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    for (const WireFormat wire : {WireFormat::kInt8Blocks, WireFormat::kLargest}) {
      for (const std::int64_t count : {std::int64_t{1000}, kLarge}) {
        Request request = make_request("x" + std::to_string(count) + name_of(wire), {count});
        const auto expected = result_of(*parts.coordinator, request, rank, -1);
        request.wire = wire;
        request.wire_detail = 512;
        EXPECT_EQ(result_of(*parts.coordinator, request, rank, 0), expected);
      }
    }
  });
}

TEST_P(StagingSlotsTest, ResultsAreThoseOfHostMemoryWithoutABuffer) {
  std::atomic<std::size_t> bytes{0};  // of all ranks
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    int number = 0;
    const auto expect = [&](ReduceOp op, DataType dtype, std::int64_t count) {
      Request request = sum_of("r" + std::to_string(number++), count);
      request.op = op;
      request.tensors[0].dtype = dtype;
      bytes += request.tensors[0].bytes();
      expect_bits_of_host(*parts.coordinator, request, rank);
    };
    for (const std::int64_t count : {kLarge - 1, kLarge, 3 * kLarge + 1, 10 * kLarge - 7}) {
      expect(ReduceOp::kSum, DataType::kFloat32, count);
    }
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
      expect(op, DataType::kFloat64, kLarge + 1);
    }
    barrier(*parts.coordinator, "end");
  });
  EXPECT_EQ(cuda_.copied_by_pinned(), 0U);
  EXPECT_EQ(cuda_.copied_by_registered(), 2 * bytes);
}

TEST_P(StagingSlotsTest, ARankWithoutPinnedSlotsWorksBesideOthers) {
  cuda_.refuse_to_register(1);
  std::size_t bytes = 0;
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    for (int step = 0; step < 2; ++step) {
      expect_bits_of_host(
          *parts.coordinator, sum_of("x" + std::to_string(step), 3 * kLarge + step), rank);
    }
    barrier(*parts.coordinator, "end");
    EXPECT_EQ(cuda_.registered(), static_cast<std::size_t>(size() - 1));
    barrier(*parts.coordinator, "looked");
  });
  for (std::int64_t step = 0; step < 2; ++step) {
    bytes += 2 * sizeof(float) * static_cast<std::size_t>(3 * kLarge + step);
  }
  EXPECT_EQ(cuda_.copied_by_pinned(), bytes);
  EXPECT_EQ(cuda_.copied_by_registered(), bytes * static_cast<std::size_t>(size() - 1));
}

/// Units of several tensors, beside those that go the other way: small ones, other operations.
TEST_P(StagingSlotsTest, AllSortsOfUnitsMix) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::mt19937 random(3);  // the same on every rank
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<float>> tensors;
      std::vector<Handle> handles;
      for (int i = 0; i < 12; ++i) {
        const auto count = static_cast<std::int64_t>(1 + random() % (1U << (10 + random() % 9)));
        Request request = make_request("t" + std::to_string(round * 100 + i), {count});
        request.device = 0;
        request.op = random() % 4 == 0 ? ReduceOp::kMax : ReduceOp::kSum;
        if (random() % 5 == 0) {
          request.kind = OpKind::kBroadcast;
        }
        tensors.emplace_back(static_cast<std::size_t>(count), static_cast<float>(rank + 1));
        handles.push_back(submit(coordinator, request, tensors.back()));
      }
      coordinator.flush();
      std::vector<float> expected;
      for (const Handle handle : handles) {
        const auto operation = coordinator.wait(handle);
        coordinator.device_path().order_after(*operation, nullptr);
        const Request& request = operation->request;
        expected.push_back(request.kind == OpKind::kBroadcast ? 1.0F
                           : request.op == ReduceOp::kMax
                               ? static_cast<float>(size())
                               : static_cast<float>(size() * (size() + 1)) / 2);
        coordinator.release(handle);
      }
      cuda_.drain();
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(tensors[i], std::vector<float>(tensors[i].size(), expected[i]));
      }
    }
  });
  EXPECT_GT(cuda_.copied_by_registered(), 0U);
  EXPECT_GT(cuda_.copied_by_pinned(), 0U);
}

TEST_P(StagingSlotsTest, ARankThatHasJoinedGivesZeros) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    if (rank > 0) {
      std::vector<float> values(3 * kLarge, 1);
      Request request = make_request("x", {3 * kLarge});
      request.device = 0;
      finish(coordinator, submit(coordinator, request, values));
      cuda_.drain();
      EXPECT_EQ(std::vector<float>(3 * kLarge, static_cast<float>(size() - 1)), values);
    }
    join(coordinator);
  });
  EXPECT_EQ(cuda_.copied_by_pinned(), 0U);
}

TEST_P(StagingSlotsTest, OtherUnitsGoThroughBuffers) {
  world_.options.check_finite = FiniteMode::kWarn;
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    expect_bits_of_host(*parts.coordinator, sum_of("looked at", kLarge), rank);
  });
  world_.options.check_finite = FiniteMode::kOff;
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Request request = sum_of("narrow", kLarge);
    request.wire = WireFormat::kFloat16;
    request.prescale = 0.5;
    // What 16 bits can hold: in host memory nothing is rounded.
    std::vector<std::vector<float>> both(2, std::vector<float>(kLarge, static_cast<float>(rank)));
    for (const int device : {-1, 0}) {
      request.device = device;
      std::vector<float>& values = both[static_cast<std::size_t>(-device)];
      finish(*parts.coordinator, submit(*parts.coordinator, request, values));
    }
    cuda_.drain();
    EXPECT_EQ(both[1], both[0]);
    request.device = -1;
    expect_bits_of_host(*parts.coordinator, sum_of("small", 1000), rank);
    if (size() == 2) {
      request = make_request("adasum", {kLarge});
      request.op = ReduceOp::kAdasum;
      expect_bits_of_host(*parts.coordinator, request, rank);
    }
  });
  EXPECT_EQ(cuda_.copied_by_registered(), 0U);
  EXPECT_EQ(cuda_.registered(), 0U);
}

/// Slots of a process set are given back with it.
TEST_P(StagingSlotsTest, ProcessSetsHaveTheirOwn) {
  world_.size = size() + 1;  // the last rank is no member
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::vector<int> members;
    for (int member = 0; member + 1 < size(); ++member) {
      members.push_back(member);
    }
    for (int round = 0; round < 3; ++round) {
      Request request = sum_of("x" + std::to_string(round), 2 * kLarge);
      request.process_set = coordinator.add_process_set(members);
      if (rank + 1 < size()) {
        expect_bits_of_host(coordinator, request, rank);
      }
      EXPECT_TRUE(coordinator.remove_process_set(request.process_set));
      barrier(coordinator, "removed");
      // The lane of the last unit still has to let go of the set.
      yield_until([&] { return cuda_.registered() == 0; });
      barrier(coordinator, "looked");
    }
  });
  EXPECT_EQ(cuda_.copied_by_pinned(), 0U);
}

TEST_P(StagingSlotsTest, ASteadyStateMakesNoSynchronisingCall) {
  check_steady_state([&](Coordinator& coordinator, int rank) {
    result_of(coordinator, make_request("steady", {3 * kLarge}), rank, 0);
  });
}

TEST_P(StagingSlotsTest, ABrokenDeviceIsAnErrorAndNoHang) { check_broken_device(5 * kLarge); }

INSTANTIATE_TEST_SUITE_P(Worlds,
                         StagingSlotsTest,
                         worlds({{Transport::kTcp, {2, 3}}}),
                         setting_name);

/// What `auto` takes on one host.
TEST(StagingSlots, HierarchicalOnOneHostSharesThem) {
  NcclWorld gpus(2);
  CoordinatorWorld world(2, Transport::kTcp);
  world.options.parameters.unit_bytes = kUnit;
  world.make_engine = [](int, EngineContext* context, const std::shared_ptr<FakeHub>&) {
    context->host_of = {0, 0};
    return std::make_unique<HierarchicalEngine>(*context, tcp_levels());
  };
  with_submitters(gpus, Place::kStaged, world, 1, [](int, RankParts&, Submitter& gpu) {
    std::vector<float> tensor(3 * kLarge, 1);
    gpu.finish(gpu.submit(make_request("x"), tensor));
    EXPECT_EQ(tensor, std::vector<float>(3 * kLarge, 2));
  });
  EXPECT_EQ(gpus.cuda.copied_by_pinned(), 0U);
  EXPECT_EQ(gpus.cuda.registered(), 0U);
}

/// Tells when it is aborted.
class ToldEngine : public ShmEngine {
 public:
  ToldEngine(const EngineContext& context, std::function<void()> tell)
      : ShmEngine(context), tell_(std::move(tell)) {}
  void abort(const Status& status) noexcept override {
    ShmEngine::abort(status);
    tell_();
  }

 private:
  const std::function<void()> tell_;
};

/// The driver whose streams stand still from some copy on.
struct StandingDriver {
  explicit StandingDriver(int copies) : copies_left(copies) {
    self = this;
    driver.copy_async = [](CudaAddress to, CudaAddress from, std::size_t bytes, CudaStream stream) {
      if (--self->copies_left == 0) {
        self->cuda.hold();
        self->stands.set_value();
      }
      return self->cuda.driver().copy_async(to, from, bytes, stream);
    };
  }

  static StandingDriver* self;
  FakeCuda cuda;
  CudaDriver driver = cuda.driver();
  std::atomic<int> copies_left;
  std::promise<void> stands;
};
StandingDriver* StandingDriver::self = nullptr;

/// Copies are in flight when a rank is aborted, and go on only then.
TEST(StagingSlots, AnAbortWaitsForCopiesThatAreUnderWay) {
  for (const int copies : {1, 2, 5, 9, 14, 20}) {
    StandingDriver standing(copies);
    std::promise<void> aborted;
    std::atomic<bool> told{false};
    const auto tell = [&] {
      if (!told.exchange(true)) {
        aborted.set_value();
      }
    };
    CoordinatorWorld world(2, Transport::kTcp);
    world.options.parameters.unit_bytes = 8 * kUnit;
    world.options.staging = [&]() -> const CudaDriver& { return standing.driver; };
    world.make_engine = [&](int, EngineContext* context, const std::shared_ptr<FakeHub>&) {
      return std::make_unique<ToldEngine>(*context, tell);
    };
    std::thread releaser([&] {
      aborted.get_future().wait();
      standing.cuda.release();
    });
    std::vector<std::vector<float>> tensors(2, std::vector<float>(8 * kLarge, 1));
    const auto stands = standing.stands.get_future().share();
    with_coordinators(world, [&](int rank, RankParts& parts) {
      Coordinator& coordinator = *parts.coordinator;
      Request request = make_request("x");
      request.device = 0;
      const Handle handle = submit(coordinator, request, tensors[static_cast<std::size_t>(rank)]);
      coordinator.flush();
      stands.wait();
      if (rank == 0) {
        parts.engine->abort(Status(Code::kPeerLost, "the test ends it"));
      }
      EXPECT_FALSE(status_of([&] { coordinator.wait(handle); }).ok());
    });
    releaser.join();
    standing.cuda.drain();
    EXPECT_EQ(standing.cuda.misuses(), 0);
    EXPECT_EQ(standing.cuda.registered(), 0U);
    EXPECT_EQ(standing.cuda.copied_by_pinned(), 0U);
  }
}

}  // namespace
}  // namespace aiacc
