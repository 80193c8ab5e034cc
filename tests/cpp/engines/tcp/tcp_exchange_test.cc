// reduce_scatter and all_to_all of the tcp engine.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/tcp_engines.h"

namespace aiacc {
namespace {

class TcpExchangeTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

TEST_P(TcpExchangeTest, ReduceScatterEveryTypeAndOp) {
  with_engines(size(), [&](int rank, Engine& engine) {
    for (const DataType dtype : all_dtypes()) {
      for (const ReduceOp op : engine_ops()) {
        for (const int lane : {0, engine.express_lane()}) {
          check_reduce_scatter(engine, lane, rank, uneven_counts(size(), 331), dtype, op);
        }
      }
    }
  });
}

TEST_P(TcpExchangeTest, ReduceScatterEveryCount) {
  const auto n = static_cast<std::size_t>(size());
  std::vector<std::size_t> only_last(n, 0);
  only_last.back() = 100003;
  with_engines(size(), [&](int rank, Engine& engine) {
    for (const int lane : {1, engine.express_lane()}) {
      for (const std::size_t scale : {0, 1, 17, 4096, 9001}) {
        check_reduce_scatter(
            engine, lane, rank, uneven_counts(size(), scale), DataType::kFloat32, ReduceOp::kSum);
      }
      check_reduce_scatter(engine, lane, rank, only_last, DataType::kFloat16, ReduceOp::kMax);
    }
  });
}

/// Rounding depends on the order of additions.
TEST_P(TcpExchangeTest, ReduceScatterGivesTheSameBitsInEveryRun) {
  const std::vector<std::size_t> counts(static_cast<std::size_t>(size()), 20011);
  const std::size_t total = 20011 * counts.size();
  for (const bool express : {false, true}) {
    std::vector<std::vector<float>> results(counts.size());
    for (int run = 0; run < 2; ++run) {
      with_engines(size(), [&](int rank, Engine& engine) {
        const auto input = any_elements<float>(total, static_cast<unsigned>(rank));
        std::vector<float> out(20011);
        engine.reduce_scatter(express ? engine.express_lane() : run,
                              input.data(),
                              out.data(),
                              counts,
                              {DataType::kFloat32, ReduceOp::kSum});
        // Of two NaN that are added the processor's operands decide which one stays: how the bytes
        // of a message arrive makes the one or the other the first.
        std::replace_if(out.begin(), out.end(), [](float x) { return std::isnan(x); }, NAN);
        std::vector<float>& first = results[static_cast<std::size_t>(rank)];
        if (run > 0) {
          expect_equal_bits(first, out, "rank " + std::to_string(rank));
        }
        first = std::move(out);
      });
    }
  }
}

TEST_P(TcpExchangeTest, AllToAllOfUnequalPieces) {
  with_engines(size(), [&](int rank, Engine& engine) {
    for (const int lane : {2, engine.express_lane()}) {
      for (const std::size_t scale : {0, 1, 1000, 30011}) {
        check_all_to_all(engine, lane, rank, size(), scale);
      }
    }
  });
}

/// All-to-alls have connections of their own, beside which the lanes go on; ranks come to the lanes
/// in any order.
TEST_P(TcpExchangeTest, AllToAllsBesideOtherLanes) {
  with_engines(size(), [&](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    for (int i = 0; i <= kLanes; ++i) {
      const int lane = (i + rank) % (kLanes + 1);
      threads.emplace_back([&, lane] {
        try {
          for (int round = 0; round < 3; ++round) {
            if (lane == 1) {
              check_all_to_all(engine, lane, rank, size(), 20000);
            }
            check_reduce_scatter(
                engine, lane, rank, uneven_counts(size(), 999), DataType::kInt64, ReduceOp::kSum);
          }
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();
          engine.abort(error.status());
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, TcpExchangeTest, testing::Values(1, 2, 3, 4, 7));

/// More than what sockets and buffers hold; sanitizers need long for more ranks.
class TcpExchangeSizeTest : public TcpExchangeTest {};

/// More than what a reduce-scatter handles at a time, and not all parts end in the same block.
TEST_P(TcpExchangeSizeTest, ReduceScatterOfManyBlocks) {
  with_engines(size(), [&](int rank, Engine& engine) {
    check_reduce_scatter(engine,
                         0,
                         rank,
                         uneven_counts(size(), 3000001 / static_cast<std::size_t>(size())),
                         DataType::kUInt8,
                         ReduceOp::kSum);
  });
}

TEST_P(TcpExchangeSizeTest, AllToAllOfLargePieces) {
  with_engines(size(), [&](int rank, Engine& engine) {
    for (const int lane : {2, engine.express_lane()}) {
      check_all_to_all(engine, lane, rank, size(), 500009);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, TcpExchangeSizeTest, testing::Values(2, 3));

void exchange_floats(Engine& engine, int lane, int size, std::size_t count) {
  const std::vector<float> send(count * static_cast<std::size_t>(size), 1.0f);
  std::vector<float> recv(send.size());
  const std::vector<std::size_t> bytes(static_cast<std::size_t>(size), count * sizeof(float));
  engine.all_to_all(lane, send.data(), recv.data(), bytes, bytes);
}

/// Rank 0 never comes: its partners wait for connections, or for bytes.
TEST(TcpExchangeAbortTest, ReachesRanksThatConnectAndRanksThatExchange) {
  constexpr int kSize = 3;
  for (const bool connected : {false, true}) {
    with_engines(kSize, [&](int rank, Engine& engine) {
      if (connected) {
        exchange_floats(engine, 0, kSize, 10);
      }
      Status seen;
      std::atomic<bool> running{rank == 0};
      std::thread partner([&] {
        try {
          if (!running.exchange(true)) {
            exchange_floats(engine, 0, kSize, 1 << 20);
          }
        } catch (const Error& error) {
          seen = error.status();
        }
      });
      while (!running) {
        std::this_thread::yield();
      }
      engine.abort(Status(Code::kShutdown, "stop now"));
      partner.join();
      EXPECT_EQ(rank == 0 ? "" : "stop now", seen.message());
      EXPECT_THROW(exchange_floats(engine, 0, kSize, 1), Error);
    });
  }
}

std::size_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// One connection between every two ranks for each lane that was used; each end is a descriptor of
/// this process.
TEST(TcpExchangeConnectionsTest, EveryLaneHasItsOwnFromItsFirstUseOn) {
  constexpr int kSize = 3;
  with_engines(kSize, [&](int rank, Engine& engine) {
    const auto meet = [&] {
      float one = 1;
      engine.all_reduce(0, &one, &one, 1, {DataType::kFloat32, ReduceOp::kSum});
    };
    meet();
    // One rank counts, for who does has the folder open.
    const std::size_t before = rank == 0 ? descriptors() : 0;
    meet();
    for (int lane = 0; lane <= engine.express_lane(); ++lane) {
      exchange_floats(engine, lane, kSize, 10);
      exchange_floats(engine, lane, kSize, 10);
      meet();
      if (rank == 0) {
        const auto lanes = static_cast<std::size_t>(lane) + 1;
        EXPECT_EQ(descriptors() - before, lanes * kSize * (kSize - 1U));
      }
      meet();
    }
    meet();
  });
}

TEST(TcpExchangeOrderTest, RanksThatDisagreeGetAnErrorInsteadOfGarbage) {
  const auto expect_disagreement = [](const auto& body) {
    try {
      with_engines(2, body);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(Code::kInternal, error.code());
      EXPECT_NE(std::string::npos, std::string(error.what()).find("disagree")) << error.what();
    }
  };
  expect_disagreement(
      [](int rank, Engine& engine) { exchange_floats(engine, 0, 2, rank == 0 ? 100 : 99); });
  for (const bool express : {false, true}) {
    expect_disagreement([&](int rank, Engine& engine) {
      const std::vector<float> send(100, 1.0f);
      std::vector<float> recv(100);
      const int lane = express ? engine.express_lane() : 0;
      const Reduction reduction{DataType::kFloat32, rank == 0 ? ReduceOp::kSum : ReduceOp::kMax};
      engine.reduce_scatter(lane, send.data(), recv.data(), {50, 50}, reduction);
    });
  }
}

}  // namespace
}  // namespace aiacc
