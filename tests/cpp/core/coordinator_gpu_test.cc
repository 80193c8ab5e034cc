#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/engines/hierarchical/hierarchical_device_engine.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/support/gpu_ranks.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {
namespace {

/// Whether a float32 of 11 significant bits stays what it is.
bool request_keeps(WireFormat wire) {
  return wire == WireFormat::kTensor || wire == WireFormat::kFloat16;
}

class CoordinatorGpuTest : public testing::TestWithParam<int> {
 protected:
  template <class Body>
  void with_gpus(Body body) {
    aiacc::with_gpus(gpus_, world_, lanes_, body);
  }
  int size() const { return GetParam(); }
  void check_that_no_thread_waits();

  NcclWorld gpus_{GetParam()};
  CoordinatorWorld world_;
  int lanes_ = 2;
};

TEST_P(CoordinatorGpuTest, EveryReductionOfEveryType) {
  with_gpus([&](int rank, RankParts&, GpuRank& gpu) {
    for (int type = 0; type < kDataTypes; ++type) {
      const auto dtype = static_cast<DataType>(type);
      if (dtype == DataType::kInt16 || dtype == DataType::kUInt16) {
        continue;
      }
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        check_all_reduce_call(rank,
                              size(),
                              1001,
                              dtype,
                              op,
                              [&](const void* send, void* recv, const Reduction& reduction) {
                                Request request = make_request("x", {1001});
                                request.dtype = dtype;
                                request.op = op;
                                request.postscale = reduction.factor;
                                gpu.finish(gpu.submit(request, send, recv));
                              });
      }
    }
  });
}

TEST_P(CoordinatorGpuTest, PacksSplitsAndScales) {
  with_gpus([&](int rank, RankParts&, GpuRank& gpu) {
    const std::vector<std::int64_t> counts = {1, 30, 7, 9000, 2, 600, 100000, 3};
    for (int step = 0; step < 5; ++step) {
      std::vector<std::vector<float>> in;
      std::vector<std::vector<float>> out;
      std::vector<Handle> handles;
      for (const std::int64_t count : counts) {
        in.emplace_back(static_cast<std::size_t>(count), static_cast<float>(rank + step));
        out.emplace_back(static_cast<std::size_t>(count), -1.0F);
      }
      for (std::size_t i = 0; i < counts.size(); ++i) {
        Request request = make_request("w" + std::to_string(i), {counts[i]});
        request.op = ReduceOp::kAverage;
        request.prescale = 2.0;
        request.postscale = 4.0;
        const bool in_place = i % 2 == 0;
        handles.push_back(
            gpu.submit(request, in[i].data(), in_place ? in[i].data() : out[i].data()));
      }
      for (std::size_t i = 0; i < counts.size(); ++i) {
        gpu.finish(handles[i]);
        const std::vector<float>& result = i % 2 == 0 ? in[i] : out[i];
        const float sum =
            static_cast<float>(size() * (size() - 1)) / 2 + static_cast<float>(size() * step);
        const float expected = sum * 8 / static_cast<float>(size());
        EXPECT_EQ(counts[i], std::count(result.begin(), result.end(), expected))
            << result.front() << " instead of " << expected;
      }
    }
  });
}

TEST_P(CoordinatorGpuTest, NarrowFloatsOnTheWire) {
  with_gpus([&](int rank, RankParts&, GpuRank& gpu) {
    const float rest = 1.0F / 256;  // lost in those that are narrower than float16
    for (int wire = 0; !is_coded(static_cast<WireFormat>(wire)); ++wire) {
      std::vector<std::vector<float>> values;
      std::vector<Handle> handles;
      for (const std::size_t count : {std::size_t{5}, std::size_t{333}, std::size_t{20001}}) {
        values.emplace_back(count, static_cast<float>(rank + 1) + rest);
      }
      for (auto& value : values) {
        Request request = make_request("w" + std::to_string(handles.size()),
                                       {static_cast<std::int64_t>(value.size())});
        request.wire = static_cast<WireFormat>(wire);
        request.prescale = 2;
        request.postscale = 0.25;
        handles.push_back(gpu.submit(request, value.data(), value.data()));
      }
      // One rank sends nothing.
      const bool exact = size() == 1 || request_keeps(static_cast<WireFormat>(wire));
      const int sum = size() * (size() + 1) / 2;
      for (std::size_t i = 0; i < values.size(); ++i) {
        gpu.finish(handles[i]);
        const float got = values[i].front();
        EXPECT_EQ(values[i].size(), std::count(values[i].begin(), values[i].end(), got));
        if (exact) {
          EXPECT_EQ((static_cast<float>(sum) + static_cast<float>(size()) * rest) / 2, got);
        } else {
          EXPECT_EQ(static_cast<float>(sum) / 2, got) << name_of(static_cast<WireFormat>(wire));
        }
      }
    }
  });
}

/// A launch costs a thread of NCCL's, so units of a round that are on different lanes share one.
TEST_P(CoordinatorGpuTest, UnitsOfAllLanesAreLaunchedTogether) {
  for (const int lanes : {1, 2, 4}) {
    lanes_ = lanes;
    world_.lanes = lanes;
    world_.options.parameters = {0, 1, static_cast<std::uint32_t>(lanes)};
    world_.options.parameters.gpu_unit_bytes = 102'400;
    constexpr int kUnits = 8;
    std::atomic<int> before{0};
    std::vector<std::vector<float>> memory(static_cast<std::size_t>(size()));
    with_gpus([&](int rank, RankParts& parts, GpuRank& gpu) {
      float first = 0;
      gpu.finish(gpu.submit(make_request("connects", {1}), &first, &first));
      barrier(*parts.coordinator, "all have");
      if (rank == 0) {
        before = gpus_.nccl.launches();
      }
      barrier(*parts.coordinator, "counted");
      auto& values = memory[static_cast<std::size_t>(rank)];
      values.assign(25'600 * kUnits, 1.0F);
      gpu.finish(gpu.submit(make_request("x", {25'600 * kUnits}), values.data(), values.data()));
      EXPECT_EQ(std::vector<float>(values.size(), static_cast<float>(size())), values);
    });
    EXPECT_EQ(before + size() * kUnits / lanes, gpus_.nccl.launches()) << lanes << " lanes";
  }
}

/// AIACC_UNIT_BYTES does not count for them.
TEST_P(CoordinatorGpuTest, UnitsHaveASizeOfTheirOwn) {
  world_.options.parameters.unit_bytes = 1 << 20;
  with_gpus([&](int rank, RankParts& parts, GpuRank& gpu) {
    std::vector<float> values(4096, 1.0F);
    const auto units_of = [&](const std::function<void()>& step) {
      const std::uint64_t before = parts.coordinator->stats().units;
      step();
      return parts.coordinator->stats().units - before;
    };
    const Request request = make_request("x", {4096});  // 16 KiB, 4 units
    const auto on_gpu = [&] { gpu.finish(gpu.submit(request, values.data(), values.data())); };
    EXPECT_EQ(4U, units_of(on_gpu));
    EXPECT_EQ(1U, units_of([&] {
                finish(*parts.coordinator,
                       submit(*parts.coordinator, request, values.data(), values.data()));
              }));
    barrier(*parts.coordinator, "before");
    if (rank == 0) {  // agreed on, as all parameters are
      Parameters parameters = world_.options.parameters;
      parameters.gpu_unit_bytes = 16 << 10;
      parts.coordinator->propose(parameters);
    }
    while (units_of(on_gpu) != 1) {
    }
    barrier(*parts.coordinator, "after");
  });
}

TEST_P(CoordinatorGpuTest, AnAlgorithmForAllUnitsOfAnEpoch) {
  with_gpus([&](int rank, RankParts& parts, GpuRank& gpu) {
    if (rank == 0) {
      Parameters parameters = world_.options.parameters;
      parameters.algorithm = Algorithm::kTree;
      parts.coordinator->propose(parameters);
    }
    while (gpus_.nccl.preferred("tree") < 10 * size()) {
      float value = 1;
      gpu.finish(gpu.submit(make_request("x", {1}), &value, &value));
      ASSERT_EQ(static_cast<float>(size()), value);
      barrier(*parts.coordinator, "after");
    }
  });
  EXPECT_EQ(0, gpus_.nccl.preferred("ring"));
}

TEST_P(CoordinatorGpuTest, AnAlgorithmFromTheStart) {
  world_.options.parameters.algorithm = Algorithm::kRing;
  with_gpus([&](int, RankParts&, GpuRank& gpu) {
    std::vector<float> values(5000, 1.0F);  // several units
    gpu.finish(gpu.submit(make_request("x", {5000}), values.data(), values.data()));
    EXPECT_EQ(static_cast<float>(size()), values.back());
  });
  EXPECT_GE(gpus_.nccl.preferred("ring"), 2 * size());
  EXPECT_EQ(0, gpus_.nccl.preferred("tree"));
}

TEST_P(CoordinatorGpuTest, TheOtherOperations) {
  with_gpus([&](int rank, RankParts& parts, GpuRank& gpu) {
    const auto ranks = static_cast<std::size_t>(size());
    for (int step = 0; step < 3; ++step) {
      std::vector<int> sent(5, rank == size() - 1 ? 42 + step : 0);
      std::vector<int> got(5);
      Request request = make_request("b", OpKind::kBroadcast, {5});
      request.dtype = DataType::kInt32;
      request.root = size() - 1;
      const Handle first = gpu.submit(request, sent.data(), got.data());
      std::vector<int> in_place = sent;
      request.name = "b2";
      const Handle second = gpu.submit(request, in_place.data(), in_place.data());
      gpu.finish(first);
      gpu.finish(second);
      EXPECT_EQ(std::vector<int>(5, 42 + step), got);
      EXPECT_EQ(got, in_place);

      // Rank r gives r rows, so rank 0 none.
      std::vector<float> rows(static_cast<std::size_t>(rank) * 2, static_cast<float>(rank));
      Handle handle =
          gpu.submit(make_request("g", OpKind::kAllgather, {rank, 2}), rows.data(), nullptr);
      auto operation = gpu.wait(handle);
      std::vector<float> all(ranks * (ranks - 1), -1.0F);
      parts.coordinator->device_path().copy_gathered(*operation, 0, all.data(), gpu.stream());
      operation.reset();
      parts.coordinator->release(handle);
      gpu.settle();
      std::vector<float> expected;
      for (int r = 0; r < size(); ++r) {
        expected.insert(expected.end(), static_cast<std::size_t>(r) * 2, static_cast<float>(r));
      }
      EXPECT_EQ(expected, all);

      // One row to every rank.
      std::vector<float> pieces;
      for (int r = 0; r < size(); ++r) {
        pieces.push_back(static_cast<float>(rank * 10 + r));
      }
      request = make_request("a", OpKind::kAlltoall, {size()});
      request.numbers.assign(ranks, 1);
      handle = gpu.submit(request, pieces.data(), nullptr);
      operation = gpu.wait(handle);
      std::vector<float> received(ranks, -1.0F);
      parts.coordinator->device_path().copy_gathered(*operation, 0, received.data(), gpu.stream());
      operation.reset();
      parts.coordinator->release(handle);
      gpu.settle();
      for (int r = 0; r < size(); ++r) {
        EXPECT_EQ(static_cast<float>(r * 10 + rank), received[static_cast<std::size_t>(r)]);
      }

      // One row more than ranks: the first rank gets two.
      std::vector<float> terms((ranks + 1) * 3, static_cast<float>(rank + 1));
      std::vector<float> own((rank == 0 || size() == 1 ? 2U : 1U) * 3U, -1.0F);
      request = make_request("s", OpKind::kReducescatter, {size() + 1, 3});
      request.op = ReduceOp::kAverage;
      request.prescale = step == 0 ? 1.0 : 2.0;
      gpu.finish(gpu.submit(request, terms.data(), own.data()));
      const float mean = static_cast<float>(size() + 1) / 2 * (step == 0 ? 1.0F : 2.0F);
      EXPECT_EQ(std::vector<float>(own.size(), mean), own);
    }
  });
}

void CoordinatorGpuTest::check_that_no_thread_waits() {
  std::vector<std::vector<float>> memory(static_cast<std::size_t>(size()));
  std::atomic<int> arrived{0};
  with_gpus([&](int rank, RankParts&, GpuRank& gpu) {
    const auto meet = [&](int times) { await_all(arrived, times * size()); };
    std::vector<float>& values = memory[static_cast<std::size_t>(rank)];
    values.assign(20000, 1.0F);
    const auto step = [&] {
      std::vector<Handle> handles;
      for (int i = 0; i < 10; ++i) {  // small ones are packed; the last one is cut
        const std::int64_t count = i < 9 ? 100 : 10000;
        float* data = values.data() + i * 1000;
        handles.push_back(gpu.submit(make_request("w" + std::to_string(i), {count}), data, data));
      }
      return handles;
    };
    for (const Handle handle : step()) {  // connects, and takes memory
      gpu.finish(handle);
    }
    meet(1);
    gpus_.cuda.hold();
    const int before = gpus_.cuda.synchronising_calls();
    meet(2);
    for (const Handle handle : step()) {
      gpu.wait(handle);
    }
    EXPECT_EQ(static_cast<float>(size()), values[0]) << "nothing has run";
    meet(3);
    EXPECT_EQ(before, gpus_.cuda.synchronising_calls());
    meet(4);
    gpus_.cuda.release();
    gpu.settle();
    EXPECT_EQ(static_cast<float>(size() * size()), values[0]);
    EXPECT_EQ(static_cast<float>(size() * size()), values[18999]);
  });
}

TEST_P(CoordinatorGpuTest, NoThreadWaitsForTheGpu) { check_that_no_thread_waits(); }

TEST_P(CoordinatorGpuTest, NoThreadWaitsForWhatIsFoundInInputs) {
  world_.options.check_finite = FiniteMode::kRaise;
  check_that_no_thread_waits();
}

TEST_P(CoordinatorGpuTest, InputsAreAwaitedAndReadersWait) {
  with_gpus([&](int, RankParts&, GpuRank& gpu) {
    std::vector<float> values(3000, 0.0F);
    std::vector<float> seen(3000, 0.0F);
    std::atomic<bool> written{false};
    // The tensor is written long after it is submitted; streams decide what comes first.
    std::thread writer;
    std::atomic<bool> go{false};
    ASSERT_EQ(kCudaSuccess, gpus_.cuda.enqueue(gpu.stream(), [&] {
      while (!go.load()) {
        std::this_thread::yield();
      }
      std::fill(values.begin(), values.end(), 3.0F);
      written.store(true);
    }));
    const Handle handle = gpu.submit(make_request("x", {3000}), values.data(), values.data());
    gpu.wait(handle);
    EXPECT_FALSE(written.load()) << "the wait returned when it was queued";
    ASSERT_EQ(kCudaSuccess, gpus_.cuda.enqueue(gpu.stream(), [&] { seen = values; }));
    go.store(true);
    gpu.settle();
    EXPECT_EQ(std::vector<float>(3000, 3.0F * static_cast<float>(size())), seen);
  });
}

TEST_P(CoordinatorGpuTest, OneOrderWhateverTheOrderOfSubmission) {
  gpus_.nccl.set_resident(1);  // two operations that meet crosswise would wait for ever
  lanes_ = 3;
  with_gpus([&](int rank, RankParts&, GpuRank& gpu) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int step = 0; step < 10; ++step) {
      std::vector<int> order(30);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::vector<float>> values(order.size());
      std::vector<Handle> handles(order.size());
      for (const int i : order) {
        auto& value = values[static_cast<std::size_t>(i)];
        value.assign(static_cast<std::size_t>(1 + i * i * 20), static_cast<float>(i));
        handles[static_cast<std::size_t>(i)] = gpu.submit(
            make_request("w" + std::to_string(i), {1 + i * i * 20}), value.data(), value.data());
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const int i : order) {
        gpu.finish(handles[static_cast<std::size_t>(i)]);
        const auto& value = values[static_cast<std::size_t>(i)];
        EXPECT_EQ(static_cast<float>(i * size()), value.front());
        EXPECT_EQ(static_cast<float>(i * size()), value.back());
      }
    }
  });
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(gpus_.nccl.issued(0), gpus_.nccl.issued(rank));
    EXPECT_EQ(1U, gpus_.nccl.issuing_threads(rank));
  }
}

TEST_P(CoordinatorGpuTest, ProcessSets) {
  with_gpus([&](int rank, RankParts& parts, GpuRank& gpu) {
    std::vector<int> first;
    for (int r = 0; r < size(); r += 2) {
      first.push_back(r);
    }
    const std::uint32_t set = size() == 1 ? 0 : parts.coordinator->add_process_set(first);
    for (int i = 0; i < 5; ++i) {
      std::vector<float> in_set(5000, 1.0F);
      float in_all = 1;
      Handle mine = 0;
      if (rank % 2 == 0) {
        Request request = make_request("x", {5000});
        request.process_set = set;
        mine = gpu.submit(request, in_set.data(), in_set.data());
      }
      gpu.finish(gpu.submit(make_request("y", {1}), &in_all, &in_all));
      if (rank % 2 == 0) {
        gpu.finish(mine);
        const auto members = size() == 1 ? 1.0F : static_cast<float>(first.size());
        EXPECT_EQ(members, in_set.back());
      }
      EXPECT_EQ(static_cast<float>(size()), in_all);
    }
    if (set != 0) {
      EXPECT_TRUE(parts.coordinator->remove_process_set(set));
    }
  });
}

TEST_P(CoordinatorGpuTest, ARankThatHasJoinedGivesZeros) {
  with_gpus([&](int rank, RankParts& parts, GpuRank& gpu) {
    const auto sum_of = [&](int steps) {
      float last = 0;
      for (int step = 0; step < steps; ++step) {
        std::vector<float> small(3, 1.0F);
        std::vector<float> large(9000, 1.0F);
        const Handle a = gpu.submit(make_request("small", {3}), small.data(), small.data());
        const Handle b = gpu.submit(make_request("also", {1}), &last, &last);
        const Handle c = gpu.submit(make_request("large", {9000}), large.data(), large.data());
        gpu.finish(a);
        gpu.finish(b);
        gpu.finish(c);
        EXPECT_EQ(small.front(), large.back());
        last = large.back();
      }
      return last;
    };
    sum_of(1);
    const float last = sum_of(rank);  // rank 0 leaves first
    const Handle handle =
        submit(*parts.coordinator, make_request("", OpKind::kJoin, {}), nullptr, nullptr);
    EXPECT_EQ(size() - 1, parts.coordinator->wait(handle)->value);
    parts.coordinator->release(handle);
    EXPECT_EQ(static_cast<float>(rank == 0 ? 0 : size() - rank), last);
    EXPECT_EQ(static_cast<float>(size()), sum_of(1));
  });
}

TEST_P(CoordinatorGpuTest, ComesUpManyTimes) {
  for (int i = 0; i < 10; ++i) {
    with_gpus([&](int, RankParts&, GpuRank& gpu) {
      std::vector<float> value(2000, 1.0F);
      const Handle handle = gpu.submit(make_request("x", {2000}), value.data(), value.data());
      gpu.finish(handle);
      EXPECT_EQ(static_cast<float>(size()), value.back());
    });
  }
}

/// The planner's lanes are those of the engine for host memory, and its express lane is one more.
TEST_P(CoordinatorGpuTest, AHierarchyWithFewerLanesThanTheEngineOfTheHost) {
  const HostEngineFactory over_tcp = [](const EngineContext& job) {
    return std::make_unique<TcpEngine>(job);
  };
  for (const HostEngineFactory& between : {HostEngineFactory(), over_tcp}) {
    CoordinatorWorld world;
    world.size = size();
    world.lanes = 5;
    world.options.parameters.lanes = 5;
    world.gpu = [&](int rank) {
      EngineContext context = gpus_.context(rank, 3);
      context.split_id = between ? 1 : 0;  // the same sockets serve both
      for (int r = 0; r < size(); ++r) {
        context.host_of.resize(static_cast<std::size_t>(size()));
        context.host_of[static_cast<std::size_t>(r)] = r / 2;
      }
      return create_hierarchical_device_engine(gpus_.engine(rank, 2), context, between);
    };
    with_coordinators(world, [&](int rank, RankParts& parts) {
      GpuRank gpu(gpus_, parts, rank);
      for (int step = 0; step < 3; ++step) {
        std::vector<std::vector<float>> values;
        std::vector<Handle> handles;
        for (const std::size_t count : {1U, 200U, 1000U, 60000U}) {
          values.emplace_back(count, static_cast<float>(rank));
        }
        for (std::size_t i = 0; i < values.size(); ++i) {
          const Request request =
              make_request("w" + std::to_string(i), {static_cast<std::int64_t>(values[i].size())});
          handles.push_back(gpu.submit(request, values[i].data(), values[i].data()));
        }
        for (std::size_t i = 0; i < values.size(); ++i) {
          gpu.finish(handles[i]);
          const auto sum = static_cast<float>(size() * (size() - 1) / 2);
          EXPECT_EQ(std::vector<float>(values[i].size(), sum), values[i]);
        }
      }
    });
  }
  EXPECT_EQ(0, gpus_.nccl.misuses()) << gpus_.nccl.complaint();
  EXPECT_EQ(0, gpus_.cuda.misuses());
}

INSTANTIATE_TEST_SUITE_P(Sizes, CoordinatorGpuTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace aiacc
