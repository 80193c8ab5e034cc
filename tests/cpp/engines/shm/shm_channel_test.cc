#include "csrc/engines/shm/shm_channel.h"

#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/reduce.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/shm_node.h"

namespace aiacc {
namespace {

/// Pretends that another node with the same numbers exists.
class TwinNode : public CrossHostReduce {
 public:
  void start(int ticket, void* data, std::size_t count, DataType dtype, ReduceOp op) override {
    EXPECT_EQ(0, tickets_[ticket].count) << "ticket used twice";
    tickets_[ticket] = {data, count, dtype, op};
  }
  void finish(int ticket) override {
    Piece& piece = tickets_[ticket];
    const std::vector<std::byte> copy(
        static_cast<std::byte*>(piece.data),
        static_cast<std::byte*>(piece.data) + piece.count * size_of(piece.dtype));
    reduce(piece.data, copy.data(), piece.count, piece.dtype, piece.op);
    piece.count = 0;
  }

 private:
  struct Piece {
    void* data = nullptr;
    std::size_t count = 0;
    DataType dtype = DataType::kUInt8;
    ReduceOp op = ReduceOp::kSum;
  };
  Piece tickets_[ShmChannel::kSlots];
};

void check(
    ShmChannel& channel, int rank, int size, std::size_t count, DataType dtype, ReduceOp op) {
  check_all_reduce_call(
      rank, size, count, dtype, op, [&](const void* send, void* recv, const Reduction& reduction) {
        channel.all_reduce(send, recv, count, reduction, nullptr);
      });
}

void check_scatter(ShmChannel& channel,
                   int rank,
                   const std::vector<std::size_t>& counts,
                   DataType dtype,
                   ReduceOp op) {
  check_reduce_scatter_call(
      rank, counts, dtype, op, [&](const void* send, void* recv, const Reduction& reduction) {
        channel.reduce_scatter(send, recv, counts, reduction);
      });
}

void check_pieces(ShmChannel& channel, int rank, int size, std::size_t scale) {
  check_all_to_all_call(rank, size, scale, [&](const void* send, void* recv, auto& from, auto& to) {
    channel.all_to_all(send, recv, from, to);
  });
}

class ShmChannelTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

TEST_P(ShmChannelTest, AllReduceEveryTypeAndOp) {
  ShmNode(size()).run([&](int rank, ShmChannel& channel) {
    for (const DataType dtype : all_dtypes()) {
      for (const ReduceOp op : engine_ops()) {
        for (const std::size_t count : {1003, 20011}) {
          check(channel, rank, size(), count, dtype, op);
        }
      }
    }
  });
}

TEST_P(ShmChannelTest, AllReduceEveryCount) {
  ShmNode(size()).run([&](int rank, ShmChannel& channel) {
    for (const std::size_t count : {0, 1, 2, 15, 17, 2048, 2049, 8192, 8193, 65536, 100001}) {
      check(channel, rank, size(), count, DataType::kFloat32, ReduceOp::kSum);
      check(channel, rank, size(), count, DataType::kUInt8, ReduceOp::kMax);
    }
  });
}

TEST_P(ShmChannelTest, ReduceScatterEveryTypeAndOp) {
  ShmNode(size()).run([&](int rank, ShmChannel& channel) {
    for (const DataType dtype : all_dtypes()) {
      for (const ReduceOp op : engine_ops()) {
        for (const std::size_t scale : {7, 2003}) {
          check_scatter(channel, rank, uneven_counts(size(), scale), dtype, op);
        }
      }
    }
  });
}

TEST_P(ShmChannelTest, ReduceScatterEveryCount) {
  std::vector<std::size_t> only_last(static_cast<std::size_t>(size()), 0);
  only_last.back() = 100003;
  ShmNode(size()).run([&](int rank, ShmChannel& channel) {
    for (const std::size_t scale : {0, 1, 15, 17, 2048, 8193}) {
      const std::vector<std::size_t> counts = uneven_counts(size(), scale);
      check_scatter(channel, rank, counts, DataType::kFloat32, ReduceOp::kSum);
      check_scatter(channel, rank, counts, DataType::kUInt8, ReduceOp::kMax);
    }
    check_scatter(channel, rank, only_last, DataType::kFloat16, ReduceOp::kSum);
  });
}

TEST_P(ShmChannelTest, AllToAllOfUnequalPieces) {
  ShmNode(size()).run([&](int rank, ShmChannel& channel) {
    for (const std::size_t scale : {0, 1, 1000, 4096, 50021}) {
      check_pieces(channel, rank, size(), scale);
    }
  });
}

/// Slots are reused across calls of different kinds; a counter that is wrong by one shows here.
TEST_P(ShmChannelTest, KindsFollowEachOtherInAnyOrder) {
  ShmNode(size(), 0).run([&](int rank, ShmChannel& channel) {
    std::mt19937 random(7);  // the same choices on every rank
    for (int i = 0; i < 100; ++i) {
      const std::size_t count = std::size_t{1} << random() % 17;
      const auto kind = random() % 5;
      if (kind == 0) {
        check_scatter(
            channel, rank, uneven_counts(size(), count), DataType::kInt32, ReduceOp::kSum);
        continue;
      }
      if (kind == 1) {
        check_pieces(channel, rank, size(), count);
        continue;
      }
      if (kind < 4) {
        check(channel, rank, size(), count, DataType::kInt32, ReduceOp::kSum);
        continue;
      }
      std::vector<std::size_t> bytes_of;
      std::vector<std::vector<std::uint8_t>> expected;
      for (int r = 0; r < size(); ++r) {
        bytes_of.push_back(random() % 3 == 0 ? 0 : count + static_cast<std::size_t>(r));
        expected.push_back(any_elements<std::uint8_t>(bytes_of.back(), random()));
      }
      std::vector<std::vector<std::uint8_t>> got;
      std::vector<void*> destinations;
      for (const std::size_t bytes : bytes_of) {
        got.emplace_back(bytes);
        destinations.push_back(got.back().data());
      }
      channel.exchange(expected[static_cast<std::size_t>(rank)].data(), bytes_of, destinations);
      ASSERT_EQ(expected, got) << "call " << i;
    }
  });
}

TEST_P(ShmChannelTest, OtherNodesJoinIn) {
  ShmNode(size()).run([&](int rank, ShmChannel& channel) {
    TwinNode twin;
    for (const std::size_t count : {1, 100, 5000, 100001}) {
      std::vector<std::int64_t> data = rank_numbers<std::int64_t>(count, rank);
      const Reduction reduction{DataType::kInt64, ReduceOp::kSum, 3.0};
      channel.all_reduce(data.data(), data.data(), count, reduction, &twin);
      std::vector<std::int64_t> expected =
          reduced_numbers<std::int64_t>(count, size(), ReduceOp::kSum);
      for (std::int64_t& value : expected) {
        value *= 2 * 3;
      }
      expect_equal_bits(expected, data, "count " + std::to_string(count));
    }
  });
}

/// Rounding depends on the order of additions.
TEST_P(ShmChannelTest, BitsAreEqualOnAllRanks) {
  for (const std::size_t count : {500, 70001}) {
    std::vector<std::vector<float>> results(static_cast<std::size_t>(size()));
    ShmNode(size()).run([&](int rank, ShmChannel& channel) {
      auto data = any_elements<float>(count, static_cast<unsigned>(rank));
      channel.all_reduce(
          data.data(), data.data(), count, {DataType::kFloat32, ReduceOp::kSum}, nullptr);
      results[static_cast<std::size_t>(rank)] = std::move(data);
    });
    for (const std::vector<float>& result : results) {
      expect_equal_bits(results[0], result, "count " + std::to_string(count));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShmChannelTest, testing::Values(1, 2, 3, 4, 7));

TEST(ShmChannelAbortTest, EndsASleepingCallAndEveryLaterOne) {
  ShmNode node(2, 0);
  std::vector<float> data(100000, 1.0f);
  const auto call = [&] {
    node[0].all_reduce(
        data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum}, nullptr);
  };
  Status seen;
  std::thread blocked([&] {
    try {
      call();  // rank 1 never comes
    } catch (const Error& error) {
      seen = error.status();
    }
  });
  node.abort(0, Status(Code::kPeerLost, "rank 1 is gone"));
  blocked.join();
  EXPECT_EQ(Code::kPeerLost, seen.code());
  EXPECT_EQ("rank 1 is gone", seen.message());
  EXPECT_THROW(call(), Error);
}

TEST(ShmChannelOrderTest, PiecesThatDoNotFitAreAnError) {
  std::vector<Status> seen(2);
  ShmNode node(2);
  node.run([&](int rank, ShmChannel& channel) {
    const std::string data(2, 'x');
    std::string out(4, ' ');
    const std::vector<std::size_t> expected = {1, rank == 0 ? 2u : 1u};
    try {
      channel.all_to_all(data.data(), out.data(), {1, 1}, expected);
    } catch (const Error& error) {
      seen[static_cast<std::size_t>(rank)] = error.status();
      node.abort(1 - rank, error.status());  // as the engines of a job tell each other
    }
  });
  EXPECT_EQ(Code::kInternal, seen[0].code());
  EXPECT_NE(std::string::npos, seen[0].message().find("disagree")) << seen[0].message();
}

}  // namespace
}  // namespace aiacc
