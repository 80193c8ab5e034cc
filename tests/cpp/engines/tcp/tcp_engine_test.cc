#include "csrc/engines/tcp/tcp_engine.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/engines/tcp/ring.h"
#include "csrc/kernels/scale.h"
#include "tests/cpp/engines/tcp_engines.h"
#include "tests/cpp/kernels/elements.h"

namespace aiacc {
namespace {

/// Small integers, so that sums and products of up to 8 ranks are exact in every type (integers
/// wrap around, as the reference does).
template <class T>
std::vector<T> numbers(std::size_t count, int rank) {
  std::vector<T> elements(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % 5);
    if constexpr (kIs16Bit<T>) {
      elements[i] = T::from(static_cast<float>(1 << (value % 2)));
    } else if constexpr (std::is_same_v<T, Bool>) {
      elements[i].bits = static_cast<std::uint8_t>(value % 2);
    } else {
      elements[i] = static_cast<T>(value + 1);
    }
  }
  return elements;
}

template <class T>
std::vector<T> reduced(std::size_t count, int size, ReduceOp op) {
  std::vector<T> result = numbers<T>(count, 0);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<T> more = numbers<T>(count, rank);
    for (std::size_t i = 0; i < count; ++i) {
      result[i] = combine_plainly(result[i], more[i], op);
    }
  }
  return result;
}

template <class T>
void expect_same(const std::vector<T>& expected,
                 const std::vector<T>& got,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(same(expected[i], got[i]))
        << what << ": element " << i << " of " << expected.size();
  }
}

class TcpEngineTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

template <class T>
void check_all_reduce(Engine& engine,
                      int lane,
                      int rank,
                      const std::vector<T>& expected,
                      DataType dtype,
                      ReduceOp op) {
  const std::size_t count = expected.size();
  const std::string what = "lane " + std::to_string(lane) + " rank " + std::to_string(rank) + " " +
                           name_of(dtype) + " " + name_of(op) + " count " + std::to_string(count);
  const std::vector<T> original = numbers<T>(count, rank);
  const std::vector<T> input = original;
  std::vector<T> out(count);
  engine.all_reduce(lane, input.data(), out.data(), count, {dtype, op});
  expect_same(expected, out, what);
  expect_same(original, input, what + " (input)");
  out = input;
  engine.all_reduce(lane, out.data(), out.data(), count, {dtype, op});
  expect_same(expected, out, what + " in place");
  std::vector<T> scaled(count);
  scale(scaled.data(), expected.data(), count, dtype, 0.3);
  engine.all_reduce(lane, input.data(), out.data(), count, {dtype, op, 0.3});
  expect_same(scaled, out, what + " with a factor");
}

TEST_P(TcpEngineTest, AllReduceEveryTypeAndOp) {
  with_engines(size(), [&](int rank, Engine& engine) {
    for (const DataType dtype : all_dtypes()) {
      for (const ReduceOp op : engine_ops()) {
        visit_dtype(dtype, [&](auto element) {
          const auto expected = reduced<decltype(element)>(1003, size(), op);
          for (const int lane : {0, engine.express_lane()}) {
            check_all_reduce(engine, lane, rank, expected, dtype, op);
          }
        });
      }
    }
  });
}

TEST_P(TcpEngineTest, AllReduceEveryCount) {
  const auto n = static_cast<std::size_t>(size());
  for (const std::size_t count : {std::size_t{0},
                                  std::size_t{1},
                                  n - 1,
                                  n + 1,
                                  std::size_t{63},
                                  std::size_t{113},
                                  std::size_t{4097},
                                  std::size_t{300001}}) {
    const auto floats = reduced<float>(count, size(), ReduceOp::kSum);
    const auto octets = reduced<std::uint8_t>(count, size(), ReduceOp::kSum);
    with_engines(size(), [&](int rank, Engine& engine) {
      for (const int lane : {0, engine.express_lane()}) {
        check_all_reduce(engine, lane, rank, floats, DataType::kFloat32, ReduceOp::kSum);
        check_all_reduce(engine, lane, rank, octets, DataType::kUInt8, ReduceOp::kSum);
      }
    });
  }
}

TEST_P(TcpEngineTest, LanesWorkAtTheSameTime) {
  with_engines(size(), [&](int rank, Engine& engine) {
    std::vector<std::exception_ptr> failures(kLanes + 1);
    std::vector<std::thread> threads;
    for (int lane = 0; lane <= kLanes; ++lane) {
      threads.emplace_back([&, lane] {
        try {
          for (int i = 0; i < 8; ++i) {
            const std::size_t count = lane == kLanes ? 100 : 100000;
            std::vector<std::int32_t> data(count, rank * 100 + lane + i);
            engine.all_reduce(
                lane, data.data(), data.data(), count, {DataType::kInt32, ReduceOp::kSum});
            const int expected = 100 * size() * (size() - 1) / 2 + (lane + i) * size();
            EXPECT_EQ(std::vector<std::int32_t>(count, expected), data) << "lane " << lane;
          }
        } catch (...) {
          failures[static_cast<std::size_t>(lane)] = std::current_exception();
          engine.abort(current_exception_status());
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const std::exception_ptr& failure : failures) {
      if (failure) {
        std::rethrow_exception(failure);
      }
    }
  });
}

/// Rounding depends on the order of additions, so this fails unless all ranks share one order.
TEST_P(TcpEngineTest, BitsAreEqualOnAllRanksAndInEveryRun) {
  const std::size_t count = 70001;
  std::vector<std::vector<float>> results(static_cast<std::size_t>(size()) * 4);
  for (int run = 0; run < 2; ++run) {
    with_engines(size(), [&](int rank, Engine& engine) {
      const std::vector<float> input = any_elements<float>(count, static_cast<unsigned>(rank));
      for (int i = 0; i < 2; ++i) {
        std::vector<float> out(count);
        engine.all_reduce(i == 0 ? 1 : engine.express_lane(),
                          input.data(),
                          out.data(),
                          count,
                          {DataType::kFloat32, ReduceOp::kSum});
        results[static_cast<std::size_t>((i * 2 + run) * size() + rank)] = std::move(out);
      }
    });
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto ranks = static_cast<std::size_t>(size());
    const std::vector<float>& of_run = results[i / ranks * ranks];
    ASSERT_EQ(0, std::memcmp(of_run.data(), results[i].data(), count * sizeof(float))) << i;
    // Two runs may keep the sign of another one of two NaNs: it depends on where a loop of vectors
    // ends.
    expect_same(results[i / (2 * ranks) * 2 * ranks], results[i], "run of " + std::to_string(i));
  }
}

TEST_P(TcpEngineTest, BroadcastFromEveryRoot) {
  const auto pattern = any_elements<std::uint8_t>(700001, 5);
  with_engines(size(), [&](int rank, Engine& engine) {
    for (int root = 0; root < size(); ++root) {
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, pattern.size() - 8}) {
        for (const int lane : {2, engine.express_lane()}) {
          const auto start = pattern.begin() + root;
          const std::vector<std::uint8_t> expected(start,
                                                   start + static_cast<std::ptrdiff_t>(bytes));
          std::vector<std::uint8_t> buffer =
              rank == root ? expected : std::vector<std::uint8_t>(bytes, 0);
          engine.broadcast(lane, buffer.data(), bytes, root);
          expect_same(expected, buffer, "root " + std::to_string(root));
        }
      }
    }
  });
}

TEST_P(TcpEngineTest, AllGatherOfUnequalParts) {
  const auto n = static_cast<std::size_t>(size());
  for (const std::size_t scale : {std::size_t{0}, std::size_t{3}, std::size_t{100003}}) {
    std::vector<std::size_t> bytes_of;
    std::vector<std::vector<std::uint8_t>> parts;
    std::vector<std::uint8_t> expected;
    for (std::size_t rank = 0; rank < n; ++rank) {
      bytes_of.push_back(rank == 1 ? 0 : scale * (rank + 1));  // one rank has nothing
      parts.push_back(any_elements<std::uint8_t>(bytes_of.back(), static_cast<unsigned>(rank)));
      expected.insert(expected.end(), parts.back().begin(), parts.back().end());
    }
    with_engines(size(), [&](int rank, Engine& engine) {
      const auto own = static_cast<std::size_t>(rank);
      for (const int lane : {1, engine.express_lane()}) {
        std::vector<std::uint8_t> out(expected.size(), 0xee);
        engine.all_gather(lane, parts[own].data(), out.data(), bytes_of);
        expect_same(expected, out, "lane " + std::to_string(lane));

        std::vector<std::uint8_t> in_place(expected.size(), 0xee);
        std::uint8_t* place = in_place.data();
        for (std::size_t i = 0; i < own; ++i) {
          place += bytes_of[i];
        }
        if (bytes_of[own] > 0) {
          std::memcpy(place, parts[own].data(), bytes_of[own]);
        }
        engine.all_gather(lane, place, in_place.data(), bytes_of);
        expect_same(expected, in_place, "in place, lane " + std::to_string(lane));
      }
    });
  }
}

TEST_P(TcpEngineTest, AbortReachesEveryBlockedLane) {
  const Status reason(Code::kShutdown, "stop now");
  with_engines(size(), [&](int rank, Engine& engine) {
    std::vector<Status> seen(kLanes + 1);
    std::atomic<int> running{0};
    std::vector<std::thread> threads;
    for (int lane = 0; lane <= kLanes; ++lane) {
      threads.emplace_back([&, lane] {
        std::vector<float> data(1 << 20, 1.0f);
        ++running;
        try {
          // Rank 0 never joins, so everybody else is stuck until the abort.
          while (rank != 0) {
            engine.all_reduce(
                lane, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum});
          }
        } catch (const Error& error) {
          seen[static_cast<std::size_t>(lane)] = error.status();
        }
      });
    }
    while (running <= kLanes) {
      std::this_thread::yield();
    }
    engine.abort(reason);
    engine.abort(Status(Code::kInternal, "too late"));
    for (std::thread& thread : threads) {
      thread.join();
    }
    float value = 0;
    EXPECT_THROW(engine.broadcast(0, &value, sizeof value, 0), Error);
    if (rank != 0) {
      for (const Status& status : seen) {
        EXPECT_EQ(Code::kShutdown, status.code());
        EXPECT_EQ("stop now", status.message());
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, TcpEngineTest, testing::Values(1, 2, 3, 4, 5, 7, 8));

/// What the first all-to-all waits for when a rank is late for it, by longer than ranks wait for
/// each other to come up.
TEST(FirstAllToAllTest, ARankThatIsBusyIsWaitedFor) {
  constexpr double kConnectTimeout = 1;
  TcpWorld world(3, kConnectTimeout);
  run_as_ranks(3, [&](int rank, RankThreads& rank_threads) {
    const std::unique_ptr<TcpEngine> engine = connect(world, rank);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::duration<double>(2 * kConnectTimeout));
    }
    const std::vector<std::size_t> bytes(3, sizeof rank);
    const std::vector<int> mine(3, rank);
    std::vector<int> all(3, -1);
    engine->all_to_all(0, mine.data(), all.data(), bytes, bytes);
    EXPECT_EQ(all, (std::vector<int>{0, 1, 2}));
  });
}

/// Others can see that it waits, and an abort ends it.
TEST(FirstAllToAllTest, WaitsForARankThatNeverComesAsOneCanSee) {
  with_engines(2, [&](int rank, Engine& engine) {
    if (rank == 0) {
      return;
    }
    std::thread blocked([&] {
      const std::vector<std::size_t> bytes(2, 1);
      char buffers[4] = {};
      try {
        engine.all_to_all(0, buffers, buffers + 2, bytes, bytes);
        ADD_FAILURE() << "rank 0 never came";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kShutdown) << error.what();
      }
    });
    while (engine.waits(0).seconds == 0) {
      std::this_thread::yield();
    }
    EXPECT_EQ(engine.waits(0).for_rank, 0);
    engine.abort({Code::kShutdown, "stop now"});
    blocked.join();
  });
}

TEST(FirstAllToAllTest, ARankThatHasDiedEndsIt) {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < 3; ++rank) {
    listeners.push_back(std::make_unique<Listener>("127.0.0.1"));
    addresses.push_back(listeners.back()->address());
  }
  // All live on until both survivors have noticed: the first to end would be a lost rank, too.
  std::vector<std::unique_ptr<Connector>> connectors(3);
  std::vector<std::unique_ptr<TcpEngine>> engines(3);
  std::promise<void> up;
  const std::shared_future<void> rank_1_is_up = up.get_future();
  run_as_ranks(3, [&](int rank, RankThreads& rank_threads) {
    const auto index = static_cast<std::size_t>(rank);
    connectors[index] =
        std::make_unique<Connector>(*listeners[index], addresses, rank, JobToken{1, 2, 3}, 1, 600);
    EngineContext context;
    context.rank = rank;
    context.size = 3;
    context.connector = connectors[index].get();
    engines[index] = std::make_unique<TcpEngine>(context);
    TcpEngine* engine = engines[index].get();
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    if (rank == 1) {
      up.set_value();
      listeners[1].reset();
      return;
    }
    // While it comes up it would welcome what the all-to-all connects, and would keep that open.
    rank_1_is_up.wait();
    const std::vector<std::size_t> bytes(3, 1);
    char buffers[6] = {};
    try {
      engine->all_to_all(0, buffers, buffers + 3, bytes, bytes);
      ADD_FAILURE() << "rank 1 is not there";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kPeerLost);
      EXPECT_NE(std::string(error.what()).find("rank 1 has died"), std::string::npos)
          << error.what();
    }
  });
}

class LostPeerTest : public testing::TestWithParam<std::tuple<int, bool>> {};

/// The last rank leaves; the ones connected to it must say so, and every later call fails alike.
TEST_P(LostPeerTest, IsNamed) {
  const auto [size, express] = GetParam();
  const int leaver = size - 1;
  std::vector<Status> seen(static_cast<std::size_t>(size));
  TcpWorld world(size);
  run_as_ranks(size, [&, express = express](int rank, RankThreads& rank_threads) {
    const std::unique_ptr<TcpEngine> engine = connect(world, rank);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
    std::vector<float> data(1 << 20, 1.0f);
    const int lane = express ? engine->express_lane() : 0;
    const auto reduce_all = [&] {
      engine->all_reduce(
          lane, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum});
    };
    reduce_all();
    if (rank == leaver) {
      return;
    }
    try {
      while (true) {
        reduce_all();
      }
    } catch (const Error& error) {
      seen[static_cast<std::size_t>(rank)] = error.status();
    }
    EXPECT_THROW(engine->broadcast(0, data.data(), 4, 0), Error);
  });
  for (int rank = 0; rank < leaver; ++rank) {
    EXPECT_EQ(Code::kPeerLost, seen[static_cast<std::size_t>(rank)].code());
  }
  EXPECT_NE(std::string::npos, seen[0].message().find("rank " + std::to_string(leaver)))
      << seen[0].message();
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         LostPeerTest,
                         testing::Combine(testing::Values(2, 3), testing::Bool()));

TEST(TcpEngineOrderTest, RanksThatDisagreeGetAnErrorInsteadOfGarbage) {
  for (const bool express : {false, true}) {
    try {
      with_engines(2, [&](int rank, Engine& engine) {
        std::vector<float> data(64, 1.0f);
        const int lane = express ? engine.express_lane() : 0;
        if (rank == 0) {
          engine.all_reduce(
              lane, data.data(), data.data(), 64, {DataType::kFloat32, ReduceOp::kSum});
        } else {
          engine.all_reduce(
              lane, data.data(), data.data(), 32, {DataType::kFloat32, ReduceOp::kSum});
        }
      });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(Code::kInternal, error.code());
      EXPECT_NE(std::string::npos, std::string(error.what()).find("disagree")) << error.what();
    }
  }
}

TEST(ChunkTest, CoversEveryElementOnce) {
  for (const std::size_t element : {1, 2, 4, 8}) {
    for (const std::size_t count : {0, 1, 7, 63, 64, 65, 1000, 4097}) {
      for (const int chunks : {1, 2, 3, 7, 8}) {
        std::size_t next = 0;
        for (int i = 0; i < chunks; ++i) {
          const auto [first, length] = chunk_of(count, element, chunks, i);
          ASSERT_EQ(next, first);
          next += length;
        }
        ASSERT_EQ(count, next);
      }
    }
  }
}

}  // namespace
}  // namespace aiacc
