// What is special about ShmChannel; that it computes is seen by ShmEngine in engine_suite_test.cc.

#include "csrc/engines/shm/shm_channel.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/shm_node.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

constexpr Reduction kSum{DataType::kInt32, ReduceOp::kSum};

class ShmChannelTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

/// Slots are reused across calls of different kinds; a counter that is wrong by one shows here.
TEST_P(ShmChannelTest, KindsFollowEachOtherInAnyOrder) {
  ShmNode(size(), 0).run([&](int rank, ShmChannel& channel) {
    std::mt19937 random(7);  // the same choices on every rank
    for (int i = 0; i < 100; ++i) {
      const std::size_t count = std::size_t{1} << random() % 17;
      switch (random() % 5) {
        case 0: {
          const auto counts = uneven_counts(size(), count);
          check_reduce_scatter_call(rank,
                                    counts,
                                    kSum.dtype,
                                    kSum.op,
                                    [&](const void* send, void* recv, const Reduction& reduction) {
                                      channel.reduce_scatter(send, recv, counts, reduction);
                                    });
          continue;
        }
        case 1:
          check_all_to_all_call(
              rank, size(), count, [&](const void* send, void* recv, auto& from, auto& to) {
                channel.all_to_all(send, recv, from, to);
              });
          continue;
        case 2:
        case 3:
          check_all_reduce_call(rank,
                                size(),
                                count,
                                kSum.dtype,
                                kSum.op,
                                [&](const void* send, void* recv, const Reduction& reduction) {
                                  channel.all_reduce(send, recv, count, reduction, nullptr);
                                });
          continue;
        default:
          break;
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

INSTANTIATE_TEST_SUITE_P(Sizes, ShmChannelTest, testing::Values(1, 2, 3, 4, 7));

TEST(ShmChannelAbortTest, EndsASleepingCallAndEveryLaterOne) {
  ShmNode node(2, 0);
  std::vector<std::int32_t> data(100'000, 1);
  const auto call = [&] {
    node[0].all_reduce(data.data(), data.data(), data.size(), kSum, nullptr);
  };
  BlockedCall blocked(call);  // rank 1 never comes
  node.abort(0, Status(Code::kPeerLost, "rank 1 is gone"));
  const Status seen = blocked.join();
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
    const std::vector<std::size_t> expected = {1, rank == 0 ? 2U : 1U};
    Status& mine = seen[static_cast<std::size_t>(rank)];
    mine = status_of([&] { channel.all_to_all(data.data(), out.data(), {1, 1}, expected); });
    if (!mine.ok()) {
      node.abort(1 - rank, mine);  // as the engines of a job tell each other
    }
  });
  expect_error(seen[0], Code::kInternal, {"disagree"});
}

}  // namespace
}  // namespace aiacc
