// All-reduces of ShmEngine whose buffers somebody else moves to and from its slots.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

constexpr std::size_t kSlotBytes = std::size_t{64} << 10;
/// Floats per slot, and the fewest that may be moved.
constexpr std::size_t kSlot = kSlotBytes / sizeof(float);
constexpr std::size_t kFewest = Engine::kLeastMovedBytes / sizeof(float);

/// A mover between host memory and slots whose copies run in any order, at any time from start to
/// finish: some at once, some not before they must. What a copy finds or hits too early or too late
/// shows in the results.
class LateMover : public BlockMover {
 public:
  LateMover(const Engine& engine, int lane, const void* input, void* output, unsigned seed)
      : slots_(engine.slots(lane)),
        input_(static_cast<const std::byte*>(input)),
        output_(static_cast<std::byte*>(output)),
        random_(seed) {}
  ~LateMover() override { EXPECT_TRUE(pending_.empty()) << "copies were not finished"; }

  /// Called with the number of calls so far, before each but `stop`; may throw.
  std::function<void(int calls)> before = [](int) {};

  int calls() const { return calls_; }
  int stops() const { return stops_; }
  std::size_t copied_in() const { return copied_in_; }
  std::size_t copied_out() const { return copied_out_; }

  void start_in(int ticket, std::size_t offset, std::size_t bytes, std::byte* to) override {
    begin_call(to, bytes);
    EXPECT_FALSE(is_pending(ticket, true)) << "ticket used twice";
    copied_in_ += bytes;
    pending_.push_back({ticket, true, to, input_ + offset, bytes});
  }
  void finish_in(int ticket) override {
    begin_call(nullptr, 0);
    finish(ticket, true);
  }
  void start_out(int ticket,
                 std::size_t offset,
                 std::size_t bytes,
                 const std::byte* from) override {
    begin_call(from, bytes);
    copied_out_ += bytes;
    pending_.push_back({ticket, false, output_ + offset, from, bytes});
  }
  void finish_out(int ticket) override {
    begin_call(nullptr, 0);
    finish(ticket, false);
  }
  void stop() noexcept override {
    ++stops_;
    pending_.clear();
  }

 private:
  struct Copy {
    int ticket;
    bool in;
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };

  void begin_call(const std::byte* slot, std::size_t bytes) {
    EXPECT_EQ(0, stops_) << "a call after the end";
    if (slot != nullptr) {
      EXPECT_TRUE(slot >= slots_.data && slot + bytes <= slots_.data + slots_.bytes);
    }
    before(calls_++);
    while (!pending_.empty() && random_() % 2 == 0) {
      run(pending_.begin() + static_cast<std::ptrdiff_t>(random_() % pending_.size()));
    }
  }
  bool is_pending(int ticket, bool in) const {
    return std::any_of(pending_.begin(), pending_.end(), [&](const Copy& copy) {
      return copy.ticket == ticket && copy.in == in;
    });
  }
  void finish(int ticket, bool in) {
    for (std::size_t i = pending_.size(); i-- > 0;) {
      if (pending_[i].ticket == ticket && pending_[i].in == in) {
        run(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  void run(std::vector<Copy>::iterator copy) {
    std::memcpy(copy->to, copy->from, copy->bytes);
    pending_.erase(copy);
  }

  const SharedSlots slots_;  ///< copies stay in the buffers and there
  const std::byte* const input_;
  std::byte* const output_;
  std::mt19937 random_;
  std::vector<Copy> pending_;
  int calls_ = 0;
  int stops_ = 0;
  std::size_t copied_in_ = 0;
  std::size_t copied_out_ = 0;
};

/// In place.
void move(
    Engine& engine, int lane, std::vector<float>& data, const Reduction& reduction, unsigned seed) {
  LateMover mover(engine, lane, data.data(), data.data(), seed);
  engine.all_reduce_moved(lane, data.size(), reduction, mover);
  EXPECT_EQ(mover.copied_in(), data.size() * sizeof(float));
  EXPECT_EQ(mover.copied_out(), data.size() * sizeof(float));
  EXPECT_EQ(mover.stops(), 0);
}

class ShmMovedTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

TEST_P(ShmMovedTest, EveryTypeAndOp) {
  with_engines(shm_ranks(size(), kSlotBytes), [&](int rank, Engine& engine) {
    auto seed = static_cast<unsigned>(rank) * 1000;
    for (const DataType dtype : all_dtypes()) {
      const std::size_t count = Engine::kLeastMovedBytes / size_of(dtype) + 11;
      for (const ReduceOp op : engine_ops()) {
        check_all_reduce_call(rank,
                              size(),
                              count,
                              dtype,
                              op,
                              [&](const void* send, void* recv, const Reduction& reduction) {
                                LateMover mover(engine, 0, send, recv, ++seed);
                                engine.all_reduce_moved(0, count, reduction, mover);
                              });
      }
    }
  });
}

/// Sums of floats have other last bits if they are added in another order.
TEST_P(ShmMovedTest, BitsAreThoseOfBuffersInHostMemory) {
  for (const std::size_t slot : {kSlot, 8 * kSlot}) {
    with_engines(shm_ranks(size(), slot * sizeof(float)), [&](int rank, Engine& engine) {
      for (const std::size_t count : {kFewest,
                                      kFewest + 1,
                                      5 * kSlot - 17,
                                      8 * kSlot - 1,
                                      8 * kSlot,
                                      8 * kSlot + 1,
                                      9 * kSlot + 3}) {
        const auto input = any_elements<float>(count, static_cast<unsigned>(rank));
        const Reduction reduction{DataType::kFloat32, ReduceOp::kSum, 0.7};
        std::vector<float> expected(count);
        engine.all_reduce(0, input.data(), expected.data(), count, reduction);
        std::vector<float> moved = input;
        move(engine, 0, moved, reduction, static_cast<unsigned>(rank));
        expect_equal_bits(expected, moved, "count " + std::to_string(count));
      }
    });
  }
}

/// Each rank decides for itself; calls of other kinds come in between.
TEST_P(ShmMovedTest, RanksNeedNotTakeTheSameWay) {
  with_engines(shm_ranks(size(), kSlotBytes), [&](int rank, Engine& engine) {
    std::mt19937 common(7);  // the same numbers on every rank
    std::mt19937 own(static_cast<unsigned>(rank));
    for (int call = 0; call < 100; ++call) {
      const int lane = call % kLanes;
      const std::size_t count = kFewest + common() % (1U << (common() % 9 + 9));
      if (common() % 4 == 0) {
        check_all_to_all(engine, lane, rank, size(), count / 8);
        continue;
      }
      auto data = rank_numbers<float>(count, rank);
      if (own() % 2 == 0) {
        engine.all_reduce(lane, data.data(), data.data(), count, kSum);
      } else {
        move(engine, lane, data, kSum, own());
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
    const auto call = [&](int rank, Engine& engine) {
      std::vector<float> data(6 * kSlot, 1);
      LateMover mover(engine, 0, data.data(), data.data(), static_cast<unsigned>(limit + rank));
      mover.before = [&](int calls) {
        if (rank == size() - 1 && calls == limit) {
          throw Error(Code::kEngine, "the GPU is gone");
        }
      };
      const Status status =
          status_of([&] { engine.all_reduce_moved(0, data.size(), kSum, mover); });
      EXPECT_TRUE(mover.stops() == 1 || mover.calls() == 0);
      thrown += status.ok() ? 0 : 1;
      throw Error(status);
    };
    EXPECT_EQ("the GPU is gone",
              status_of([&] { with_engines(shm_ranks(size(), kSlotBytes), call); }).message());
    EXPECT_EQ(size(), thrown);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShmMovedTest, testing::Values(2, 3, 4, 7));

/// Rank 1 never comes.
TEST(ShmMovedEngineTest, AnAbortEndsAWaitForRanks) {
  with_engines(shm_ranks(2, kSlotBytes), [&](int rank, Engine& engine) {
    if (rank == 1) {
      return;
    }
    std::vector<float> data(6 * kSlot, 1);
    LateMover mover(engine, 0, data.data(), data.data(), 1);
    BlockedCall blocked([&] { engine.all_reduce_moved(0, data.size(), kSum, mover); });
    engine.abort(Status(Code::kPeerLost, "rank 1 is gone"));
    EXPECT_EQ("rank 1 is gone", blocked.join().message());
    EXPECT_LE(mover.stops(), 1);  // 0: it had not begun
    EXPECT_EQ(data, std::vector<float>(6 * kSlot, 1));
  });
}

TEST(ShmMovedEngineTest, OneRankHasNoSlots) {
  with_engines(shm_ranks(1), [&](int, Engine& engine) {
    std::vector<float> data(kFewest);
    LateMover mover(engine, 0, data.data(), data.data(), 0);
    EXPECT_EQ(0U, engine.slots(0).bytes);
    EXPECT_THROW(engine.all_reduce_moved(0, data.size(), kSum, mover), Error);
  });
}

}  // namespace
}  // namespace aiacc
