// What tests rely on without seeing it: that different calls and orders are found out. That
// collectives compute, and that who asks not to block has to wait, is seen by the engine on the
// fake.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/fakes/fake_engine.h"
#include "tests/cpp/support/fakes/fake_nccl.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {
namespace {

/// One rank: its device, stream and communicators.
struct Rank {
  Rank(FakeCuda& fake_cuda, FakeNccl& fake_nccl, int number)
      : cuda(fake_cuda.driver()), nccl(fake_nccl.api()), rank(number) {
    CudaContext context = nullptr;
    cuda.primary_context_retain(&context, rank);
    cuda.context_push(context);
    cuda.stream_create(&stream, kCudaStreamNonBlocking, 0);
  }

  NcclComm join(const NcclUniqueId& id, int size) const {
    NcclComm comm = nullptr;
    NcclConfig config;
    EXPECT_EQ(kNcclSuccess, nccl.comm_init(&comm, size, id, rank, &config));
    return comm;
  }
  /// Waits for what is queued; tests may poll.
  void finish() const {
    while (cuda.stream_query(stream) == kCudaNotReady) {
      std::this_thread::yield();
    }
  }

  const CudaDriver& cuda;
  const NcclApi& nccl;
  int rank;
  CudaStream stream = nullptr;
};

class FakeNcclTest : public testing::TestWithParam<int> {
 protected:
  NcclUniqueId new_id() {
    NcclUniqueId id;
    nccl_.api().get_unique_id(&id);
    return id;
  }
  int size() const { return GetParam(); }

  FakeCuda cuda_{GetParam()};
  FakeNccl nccl_{cuda_};
};

TEST_P(FakeNcclTest, DifferentCallsAreFoundOut) {
  const NcclUniqueId id = new_id();
  run_as_ranks(size(), [&](int number) {
    const Rank rank(cuda_, nccl_, number);
    const NcclComm comm = rank.join(id, size());
    std::vector<float> values(2, 1.0f);
    const std::size_t count = number == 0 ? 2 : 1;
    rank.nccl.all_reduce(
        values.data(), values.data(), count, kNcclFloat32, kNcclSum, comm, rank.stream);
    rank.finish();
    NcclResult state = kNcclSuccess;
    rank.nccl.comm_async_error(comm, &state);
    EXPECT_EQ(kNcclInternalError, state);
    rank.nccl.comm_abort(comm);
  });
  EXPECT_EQ(1, nccl_.misuses());
  EXPECT_NE(std::string::npos, nccl_.complaint().find("all_reduce of 2 elements"));
}

/// Two communicators on streams of their own, of which a device runs one operation at a time. True
/// if all ended; if not they are aborted.
bool ends(FakeCuda& cuda, FakeNccl& nccl, int size, bool same_order) {
  NcclUniqueId ids[2];
  nccl.api().get_unique_id(&ids[0]);
  nccl.api().get_unique_id(&ids[1]);
  nccl.set_resident(1);
  std::atomic<int> stuck = 0;
  std::atomic<int> tried = 0;
  run_as_ranks(size, [&](int number) {
    const Rank rank(cuda, nccl, number);
    CudaStream other = nullptr;
    rank.cuda.stream_create(&other, kCudaStreamNonBlocking, 0);
    const NcclComm comms[] = {rank.join(ids[0], size), rank.join(ids[1], size)};
    const CudaStream streams[] = {rank.stream, other};
    float values[] = {1, 1};
    for (int i = 0; i < 2; ++i) {
      const int which = same_order || number % 2 == 0 ? i : 1 - i;
      rank.nccl.all_reduce(
          &values[which], &values[which], 1, kNcclFloat32, kNcclSum, comms[which], streams[which]);
    }
    if (same_order) {
      rank.finish();
      while (rank.cuda.stream_query(other) == kCudaNotReady) {
        std::this_thread::yield();
      }
    }
    // All have issued everything: whatever has not begun to end by then never will.
    ++tried;
    while (tried < size) {
      std::this_thread::yield();
    }
    stuck += rank.cuda.stream_query(rank.stream) == kCudaNotReady ? 1 : 0;
    ++tried;
    while (tried < 2 * size) {
      std::this_thread::yield();
    }
    for (const NcclComm comm : comms) {
      rank.nccl.comm_abort(comm);
    }
    rank.finish();
  });
  return stuck == 0;
}

TEST_P(FakeNcclTest, OneOrderOnAllRanksIsNeededWhereFewFit) {
  EXPECT_TRUE(ends(cuda_, nccl_, size(), true));
  EXPECT_FALSE(ends(cuda_, nccl_, size(), false));
}

INSTANTIATE_TEST_SUITE_P(Ranks, FakeNcclTest, testing::Values(2, 4));

TEST(FakeEngine, PiecesThatDoNotFitAreAnError) {
  const auto hub = std::make_shared<FakeHub>(2, 1);
  const Status status = status_of([&] {
    run_as_ranks(2, [&](int rank) {
      FakeEngine engine(hub, rank);
      const std::string data(2, 'x');
      std::string out(4, ' ');
      const std::vector<std::size_t> expected = {1, rank == 0 ? 2U : 1U};
      engine.all_to_all(0, data.data(), out.data(), {1, 1}, expected);
    });
  });
  expect_error(status, Code::kEngine, {"another piece"});
}

}  // namespace
}  // namespace aiacc
