// What is special about ShmEngine; what all engines promise is in engine_suite_test.cc.

#include "csrc/engines/shm/shm_engine.h"

#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/reduce.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

/// The other hosts of a job, where each of them has the same numbers.
class TwinHosts : public CrossHostReduce {
 public:
  explicit TwinHosts(int more) : more_(more) {}
  void start(int ticket, void* data, std::size_t count, DataType dtype, ReduceOp op) override {
    EXPECT_EQ(0U, tickets_[ticket].count) << "ticket used twice";
    tickets_[ticket] = {data, count, dtype, op};
  }
  void finish(int ticket) override {
    Piece& piece = tickets_[ticket];
    const std::vector<std::byte> copy(
        static_cast<std::byte*>(piece.data),
        static_cast<std::byte*>(piece.data) + piece.count * size_of(piece.dtype));
    for (int host = 0; host < more_; ++host) {
      reduce(piece.data, copy.data(), piece.count, piece.dtype, piece.op);
    }
    total_ += piece.count;
    piece.count = 0;
  }
  /// Elements that were combined.
  std::size_t total() const { return total_; }

 private:
  struct Piece {
    void* data = nullptr;
    std::size_t count = 0;
    DataType dtype = DataType::kUInt8;
    ReduceOp op = ReduceOp::kSum;
  };
  Piece tickets_[ShmChannel::kSlots];
  const int more_;
  std::size_t total_ = 0;
};

class AcrossHostsTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(AcrossHostsTest, OwnersCombineEveryElementOnce) {
  const auto [size, owners] = GetParam();
  for (const std::size_t count : {1, 100, 5000, 100001}) {
    std::vector<std::size_t> combined(static_cast<std::size_t>(size));
    with_engines(shm_ranks(size, std::size_t{64} << 10),
                 [&, size = size, owners = owners](int rank, Engine& some_engine) {
                   auto& engine = dynamic_cast<ShmEngine&>(some_engine);
                   TwinHosts hosts(2);
                   for (const bool in_place : {false, true}) {
                     const auto input = rank_numbers<std::int64_t>(count, rank);
                     std::vector<std::int64_t> out = input;
                     engine.all_reduce_across(1,
                                              in_place ? out.data() : input.data(),
                                              out.data(),
                                              count,
                                              {DataType::kInt64, ReduceOp::kSum, 5.0},
                                              hosts,
                                              owners);
                     auto expected = reduced_numbers<std::int64_t>(count, size, ReduceOp::kSum);
                     for (std::int64_t& value : expected) {
                       value *= 3 * 5;
                     }
                     expect_equal_bits(expected, out, "count " + std::to_string(count));
                   }
                   combined[static_cast<std::size_t>(rank)] = hosts.total();
                   check_all_reduce(engine, 1, rank, size, count, DataType::kInt32, ReduceOp::kSum);
                 });
    std::size_t total = 0;
    for (int rank = 0; rank < size; ++rank) {
      const std::size_t part = combined[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(rank < owners || part == 0) << rank;
      total += part;
    }
    EXPECT_EQ(2 * count, total);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         AcrossHostsTest,
                         testing::Values(std::tuple(1, 1),
                                         std::tuple(2, 1),
                                         std::tuple(2, 2),
                                         std::tuple(3, 2),
                                         std::tuple(5, 1),
                                         std::tuple(5, 3)));

/// A rank that is not the first of the job is called by its number in the job.
TEST(ShmWaitTest, NamesTheRankAsInTheJobOnEveryLane) {
  with_engines(shm_ranks(3), [&](int rank, Engine& engine) {
    if (rank == 0) {
      return;
    }
    const auto part = engine.split({1, 2}, 0);
    if (rank == 2) {
      return;
    }
    std::vector<std::unique_ptr<BlockedCall>> blocked;
    for (int lane = 0; lane <= part->express_lane(); ++lane) {
      blocked.push_back(std::make_unique<BlockedCall>([&, lane] {
        float value = 1;
        part->all_reduce(lane, &value, &value, 1, {DataType::kFloat32, ReduceOp::kSum});
      }));
    }
    for (int lane = 0; lane <= part->express_lane(); ++lane) {
      while (part->waits(lane).seconds == 0) {
        std::this_thread::yield();
      }
      EXPECT_EQ(2, part->waits(lane).for_rank);
    }
    part->abort({Code::kShutdown, "stop now"});
    for (const auto& call : blocked) {
      expect_error(call->join(), Code::kShutdown, {"stop now"});
    }
  });
}

TEST(ShmEngineHostsTest, RanksOfSeveralHostsAreRefused) {
  EngineContext context;
  context.size = 4;
  context.host_of = {7, 7, 3, 7};
  expect_error(
      status_of([&] { ShmEngine engine(context); }), Code::kInvalidArgument, {"rank(s) 2 "});
}

}  // namespace
}  // namespace aiacc
