// Ranks that use several GPUs each: engines, streams and memory of every one.

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/gpu_ranks.h"
#include "tests/cpp/support/negotiators.h"

namespace aiacc {
namespace {

/// Submits on a GPU of the rank's, from a stream of its own there.
class Stream {
 public:
  Stream(const CudaDriver& driver, RankParts& parts, int device)
      : driver_(driver),
        coordinator_(*parts.coordinator),
        device_(Device::open(driver, device)),
        scope_(*device_) {
    driver.stream_create(&stream_, kCudaStreamNonBlocking, 0);
  }

  Handle submit(Request request, std::vector<float>& values) {
    auto operation = coordinator_.acquire();
    request.device = device_->ordinal();
    operation->request = std::move(request);
    operation->input = values.data();
    operation->output = values.data();
    operation->stream = stream_;
    return coordinator_.submit(operation);
  }
  void finish(Handle handle) {
    const auto operation = coordinator_.wait(handle);
    coordinator_.device_path().order_after(*operation, stream_);
    coordinator_.release(handle);
    while (driver_.stream_query(stream_) == kCudaNotReady) {
      std::this_thread::yield();
    }
  }

 private:
  const CudaDriver& driver_;
  Coordinator& coordinator_;
  const std::shared_ptr<Device> device_;
  const Device::Scope scope_;
  CudaStream stream_ = nullptr;
};

Request request_of(const std::string& name, const std::vector<float>& values) {
  return make_request(name, {static_cast<std::int64_t>(values.size())});
}

/// Each rank has GPUs 2 * rank and 2 * rank + 1, and keeps some tensors on each.
void check_models_on_two_gpus(const CudaDriver& driver, int size, int rank, RankParts& parts) {
  // Of one thread, the last Scope is the current context: the fake wants calls for any of them.
  Stream first(driver, parts, 2 * rank);
  Stream second(driver, parts, 2 * rank + 1);
  std::mt19937 random(static_cast<unsigned>(rank));
  for (int step = 0; step < 8; ++step) {
    std::vector<std::vector<float>> values;
    for (const std::size_t count : {3U, 500U, 40U, 20000U, 7U, 9U}) {
      values.emplace_back(count, static_cast<float>(rank + step));
    }
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Handle> handles(values.size());
    const auto stream_of = [&](std::size_t i) -> Stream& {
      // The last tensor moves to the other GPU in the middle of the job, on one rank only.
      const bool moved = i + 1 == values.size() && rank == 0 && step > 3;
      return (i % 2 == 0) != moved ? first : second;
    };
    for (const std::size_t i : order) {
      handles[i] = stream_of(i).submit(request_of("w" + std::to_string(i), values[i]), values[i]);
    }
    for (const std::size_t i : order) {
      stream_of(i).finish(handles[i]);
      const float sum = static_cast<float>(size * (size - 1)) / 2 + static_cast<float>(size * step);
      EXPECT_EQ(std::vector<float>(values[i].size(), sum), values[i]);
    }
  }
}

class SeveralGpusTest : public testing::TestWithParam<int> {
 protected:
  SeveralGpusTest() { world_.size = size(); }
  ~SeveralGpusTest() override {
    EXPECT_EQ(0, gpus_.nccl.misuses()) << gpus_.nccl.complaint();
    EXPECT_EQ(0, gpus_.cuda.misuses());
    EXPECT_EQ(0, gpus_.nccl.communicators());
  }
  int size() const { return GetParam(); }
  const CudaDriver& driver() const { return gpus_.cuda.driver(); }

  template <class Body>
  void over_nccl(int lanes, Body body) {
    world_.gpu = [&](int rank) { return gpus_.engine(rank, lanes); };
    with_coordinators(world_, body);
  }

  NcclWorld gpus_{GetParam(), kNcclHeaderVersion, 2};
  CoordinatorWorld world_;
};

TEST_P(SeveralGpusTest, OverNccl) {
  gpus_.nccl.set_resident(1);
  over_nccl(2, [&](int rank, RankParts& parts) {
    check_models_on_two_gpus(driver(), size(), rank, parts);
  });
  for (int device = 0; device < 2 * size(); ++device) {
    EXPECT_EQ(1U, gpus_.nccl.issuing_threads(device)) << "GPU " << device;
  }
}

TEST_P(SeveralGpusTest, Staged) {
  world_.options.staging = [&]() -> const CudaDriver& { return driver(); };
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    check_models_on_two_gpus(driver(), size(), rank, parts);
  });
}

TEST_P(SeveralGpusTest, InAProcessSet) {
  over_nccl(2, [&](int rank, RankParts& parts) {
    std::vector<int> members(static_cast<std::size_t>(size() - 1));
    std::iota(members.begin(), members.end(), 1);
    const std::uint32_t set = parts.coordinator->add_process_set(members);
    for (int step = 0; step < 4; ++step) {
      for (int which = 0; which < 2; ++which) {
        Stream stream(driver(), parts, 2 * rank + (which + step) % 2);
        std::vector<float> of_set(300, 1);
        std::vector<float> of_all(10, 1);
        Handle in_set = 0;
        if (rank > 0) {
          Request request = request_of("s" + std::to_string(which), of_set);
          request.process_set = set;
          in_set = stream.submit(request, of_set);
        }
        stream.finish(stream.submit(request_of("a" + std::to_string(which), of_all), of_all));
        EXPECT_EQ(std::vector<float>(10, static_cast<float>(size())), of_all);
        if (rank > 0) {
          stream.finish(in_set);
          EXPECT_EQ(std::vector<float>(300, static_cast<float>(size() - 1)), of_set);
        }
      }
    }
    EXPECT_TRUE(parts.coordinator->remove_process_set(set));
  });
}

/// A rank that has joined has no tensor: its share of a placement is whichever GPU is there.
TEST_P(SeveralGpusTest, OfARankThatHasJoined) {
  over_nccl(1, [&](int rank, RankParts& parts) {
    const auto step = [&](const std::string& name, int device, float expected) {
      Stream stream(driver(), parts, 2 * rank + device);
      std::vector<float> values(100, 1);
      stream.finish(stream.submit(request_of(name, values), values));
      EXPECT_EQ(std::vector<float>(100, expected), values) << name;
    };
    const auto all = static_cast<float>(size());
    step("x", 1, all);
    if (rank > 0) {
      step("x", 1, all - 1);    // known: rank 0 is where its own tensor was
      step("new", 0, all - 1);  // rank 0 has told nothing about it
      step("new", 0, all - 1);
    }
    const Handle join =
        submit(*parts.coordinator, make_request("", OpKind::kJoin, {}), nullptr, nullptr);
    parts.coordinator->wait(join);
    parts.coordinator->release(join);
    step("new", 1, all);
    step("x", 0, all);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, SeveralGpusTest, testing::Values(2, 3));

TEST(SeveralGpus, TooManyCombinationsAreRefused) {
  constexpr int kDevices = DeviceEngineCache::kSplitIds + 1;
  FakeCuda cuda(kDevices);
  FakeNccl nccl(cuda);
  CoordinatorWorld world;
  world.size = 1;
  world.gpu = [&](int) {
    EngineContext context;
    return std::make_unique<NcclEngine>(cuda.driver(), nccl.api(), context);
  };
  with_coordinators(world, [&](int, RankParts& parts) {
    const auto use = [&](int device) {
      Stream stream(cuda.driver(), parts, device);
      std::vector<float> values(1, 1);
      stream.finish(stream.submit(request_of("x", values), values));
    };
    for (int device = 0; device + 1 < kDevices; ++device) {
      use(device);
    }
    const Status status = status_of([&] { use(kDevices - 1); });
    EXPECT_EQ(Code::kEngine, status.code()) << status.message();
    EXPECT_NE(std::string::npos, status.message().find("more than 32 combinations"));
  });
}

TEST(SeveralGpus, AnAgreementNamesThoseOfAllMembers) {
  NegotiatingRanks ranks(3);
  const auto placement = [&](const std::vector<RoundOutcome>& outcomes) {
    EXPECT_EQ(1U, outcomes[0].ready.size());
    for (const RoundOutcome& outcome : outcomes) {
      EXPECT_EQ(*outcomes[0].ready.at(0).devices, *outcome.ready.at(0).devices);
    }
    return *outcomes[0].ready.at(0).devices;
  };
  const auto submit = [&](const std::vector<int>& devices) {
    for (int rank = 0; rank < 3; ++rank) {
      Request request = make_request("w");
      request.device = devices[static_cast<std::size_t>(rank)];
      ranks.submit(rank, request);
    }
  };
  submit({0, 5, 1});
  EXPECT_EQ((DevicePlacement{0, 5, 1}), placement(ranks.round()));
  submit({0, 5, 1});
  EXPECT_EQ((DevicePlacement{0, 5, 1}), placement(ranks.round())) << "as a bit";
  submit({0, 2, 1});
  EXPECT_TRUE(ranks.round()[0].ready.empty()) << "rank 1 has moved";
  EXPECT_EQ((DevicePlacement{0, 2, 1}), placement(ranks.round()));
  ranks.submit_everywhere(make_request("host"));
  EXPECT_EQ(nullptr, ranks.round()[0].ready.at(0).devices);
}

}  // namespace
}  // namespace aiacc
