#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/shm/shm_channel.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/engines/late_mover.h"
#include "tests/cpp/engines/shm_node.h"

namespace aiacc {
namespace {

/// Floats per slot.
constexpr std::size_t kSlot = ShmNode::kSlotBytes / sizeof(float);

template <class T>
void move(ShmChannel& channel, std::vector<T>& data, const Reduction& reduction, unsigned seed) {
  LateMover mover(data.data(), data.data(), seed);
  channel.all_reduce_moved(data.size(), reduction, mover);
  EXPECT_EQ(mover.copied_in(), data.size() * sizeof(T));
  EXPECT_EQ(mover.copied_out(), data.size() * sizeof(T));
  EXPECT_EQ(mover.stops(), 0);
}

class ShmMovedTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

TEST_P(ShmMovedTest, EveryTypeAndOp) {
  ShmNode(size()).run([&](int rank, ShmChannel& channel) {
    unsigned seed = 0;
    for (const DataType dtype : all_dtypes()) {
      for (const ReduceOp op : engine_ops()) {
        check_all_reduce_call(rank,
                              size(),
                              20011,
                              dtype,
                              op,
                              [&](const void* send, void* recv, const Reduction& reduction) {
                                LateMover mover(
                                    send, recv, ++seed + static_cast<unsigned>(rank) * 1000);
                                channel.all_reduce_moved(20011, reduction, mover);
                              });
      }
    }
  });
}

/// Sums of floats have other last bits if they are added in another order.
TEST_P(ShmMovedTest, BitsAreThoseOfBuffersInHostMemory) {
  ShmNode(size()).run([&](int rank, ShmChannel& channel) {
    for (const std::size_t count : {std::size_t{2049},
                                    std::size_t{8192},
                                    std::size_t{8193},
                                    kSlot - 1,
                                    kSlot,
                                    kSlot + 1,
                                    4 * kSlot,
                                    4 * kSlot + 1,
                                    5 * kSlot - 17,
                                    9 * kSlot + 3}) {
      const auto input = any_elements<float>(count, static_cast<unsigned>(rank));
      const Reduction reduction{DataType::kFloat32, ReduceOp::kSum, 0.7};
      std::vector<float> expected(count);
      channel.all_reduce(input.data(), expected.data(), count, reduction, nullptr);
      std::vector<float> moved = input;
      move(channel, moved, reduction, static_cast<unsigned>(rank));
      expect_equal_bits(expected, moved, "count " + std::to_string(count));
    }
  });
}

/// Each rank decides for itself; calls of other kinds come in between.
TEST_P(ShmMovedTest, RanksNeedNotTakeTheSameWay) {
  ShmNode(size(), 0).run([&](int rank, ShmChannel& channel) {
    std::mt19937 common(7);  // the same numbers on every rank
    std::mt19937 own(static_cast<unsigned>(rank));
    for (int call = 0; call < 150; ++call) {
      const std::size_t count = 2049 + common() % (1U << (common() % 9 + 9));
      if (common() % 4 == 0) {
        check_all_to_all_call(
            rank, size(), count, [&](const void* send, void* recv, auto& from, auto& to) {
              channel.all_to_all(send, recv, from, to);
            });
        continue;
      }
      auto data = rank_numbers<float>(count, rank);
      const Reduction reduction{DataType::kFloat32, ReduceOp::kSum};
      if (own() % 2 == 0) {
        channel.all_reduce(data.data(), data.data(), count, reduction, nullptr);
      } else {
        move(channel, data, reduction, own());
      }
      expect_equal_bits(reduced_numbers<float>(count, size(), ReduceOp::kSum),
                        data,
                        "call " + std::to_string(call) + " rank " + std::to_string(rank));
    }
  });
}

/// Wherever it happens, in a copy or between ranks: no copy is left, and all ranks throw.
TEST_P(ShmMovedTest, AFailureOfOneEndsAll) {
  // Before the last block is reduced: then the others cannot do without this rank.
  for (int limit = 0; limit <= 22; limit += 2) {
    std::atomic<int> thrown{0};
    ShmNode node(size(), 0);
    const auto call = [&](int rank, ShmChannel& channel) {
      std::vector<float> data(6 * kSlot, 1);
      LateMover mover(data.data(), data.data(), static_cast<unsigned>(limit + rank));
      mover.before = [&](int calls) {
        if (rank == size() - 1 && calls == limit) {
          throw Error(Code::kEngine, "the GPU is gone");
        }
      };
      try {
        channel.all_reduce_moved(data.size(), {DataType::kFloat32, ReduceOp::kSum}, mover);
      } catch (const Error&) {
        EXPECT_TRUE(mover.stops() == 1 || mover.calls() == 0);
        ++thrown;
        throw;
      }
    };
    try {
      node.run(call);
      FAIL() << "no rank has thrown";
    } catch (const Error& error) {
      EXPECT_EQ(std::string("the GPU is gone"), error.what());
    }
    EXPECT_EQ(size(), thrown);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShmMovedTest, testing::Values(2, 3, 4, 7));

TEST(ShmMovedAbortTest, EndsAWaitForRanks) {
  ShmNode node(2, 0);
  std::vector<float> data(6 * kSlot, 1);
  LateMover mover(data.data(), data.data(), 1);
  std::thread blocked([&] {
    EXPECT_THROW(node[0].all_reduce_moved(data.size(), {DataType::kFloat32, ReduceOp::kSum}, mover),
                 Error);
  });
  node.abort(0, Status(Code::kPeerLost, "rank 1 is gone"));  // it never comes
  blocked.join();
  EXPECT_LE(mover.stops(), 1);  // 0: it had not begun
  EXPECT_EQ(data, std::vector<float>(6 * kSlot, 1));
}

TEST(ShmMovedEngineTest, CopiesStayInTheSlots) {
  with_engines(shm_ranks(3), [&](int rank, Engine& engine) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const SharedSlots slots = engine.slots(lane);
      ASSERT_NE(slots.data, nullptr);
      const std::size_t count = Engine::kLeastMovedBytes / sizeof(float) + 5;
      auto data = rank_numbers<float>(count, rank);
      LateMover mover(data.data(), data.data(), static_cast<unsigned>(rank));
      mover.slots = {slots.data, slots.bytes};
      engine.all_reduce_moved(lane, count, {DataType::kFloat32, ReduceOp::kSum}, mover);
      expect_equal_bits(reduced_numbers<float>(count, 3, ReduceOp::kSum), data, "moved");
    }
  });
}

TEST(ShmMovedEngineTest, OneRankHasNoSlots) {
  with_engines(shm_ranks(1), [&](int, Engine& engine) {
    std::vector<float> data(Engine::kLeastMovedBytes);
    LateMover mover(data.data(), data.data(), 0);
    EXPECT_EQ(0U, engine.slots(0).bytes);
    EXPECT_THROW(
        engine.all_reduce_moved(0, data.size(), {DataType::kFloat32, ReduceOp::kSum}, mover),
        Error);
  });
}

}  // namespace
}  // namespace aiacc
