#include "tests/cpp/support/fakes/fake_nccl.h"

#include <chrono>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/float8.h"
#include "csrc/kernels/half.h"
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

  NcclComm join(const NcclUniqueId& id, int size, int blocking = 1) const {
    NcclComm comm = nullptr;
    NcclConfig config;
    config.blocking = blocking;
    EXPECT_EQ(blocking != 0 ? kNcclSuccess : kNcclInProgress,
              nccl.comm_init(&comm, size, id, rank, &config));
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
  /// `body(rank, communicator)` on every rank.
  template <class Body>
  void with_ranks(Body body) {
    const NcclUniqueId id = new_id();
    run_as_ranks(size(), [&](int number) {
      const Rank rank(cuda_, nccl_, number);
      const NcclComm comm = rank.join(id, size());
      body(rank, comm);
      rank.finish();
      EXPECT_EQ(kNcclSuccess, nccl_.api().comm_destroy(comm));
    });
    EXPECT_EQ(0, nccl_.misuses()) << nccl_.complaint();
    EXPECT_EQ(0, nccl_.communicators());
  }
  int size() const { return GetParam(); }

  FakeCuda cuda_{GetParam()};
  FakeNccl nccl_{cuda_};
};

TEST_P(FakeNcclTest, SumsInStreamOrder) {
  with_ranks([&](const Rank& rank, NcclComm comm) {
    std::vector<float> values(100, static_cast<float>(rank.rank + 1));
    for (int i = 0; i < 3; ++i) {  // in place: every sum is the next one's input
      EXPECT_EQ(kNcclSuccess,
                nccl_.api().all_reduce(
                    values.data(), values.data(), 100, kNcclFloat32, kNcclSum, comm, rank.stream));
    }
    rank.finish();
    const int sum = size() * (size() + 1) / 2 * size() * size();
    EXPECT_EQ(std::vector<float>(100, static_cast<float>(sum)), values);
  });
}

TEST_P(FakeNcclTest, NarrowFloats) {
  with_ranks([&](const Rank& rank, NcclComm comm) {
    const std::vector<Float8E4M3> eights(33, narrow_float8<Float8E4M3>(2.0f));
    std::vector<Float8E4M3> eight_sums(33);
    nccl_.api().all_reduce(
        eights.data(), eight_sums.data(), 33, kNcclFloat8e4m3, kNcclSum, comm, rank.stream);
    const std::vector<std::uint16_t> halves(33, float_to_bfloat16(3.0f));
    std::vector<std::uint16_t> averages(33);
    nccl_.api().all_reduce(
        halves.data(), averages.data(), 33, kNcclBfloat16, kNcclAvg, comm, rank.stream);
    rank.finish();
    EXPECT_EQ(2.0f * static_cast<float>(size()), widen_float8(eight_sums[32]));
    EXPECT_EQ(halves, averages);
  });
}

TEST_P(FakeNcclTest, AFactorOfEveryRank) {
  with_ranks([&](const Rank& rank, NcclComm comm) {
    float factor = static_cast<float>(rank.rank);
    NcclRedOp op{};
    nccl_.api().create_premul_sum(&op, &factor, kNcclFloat32, kNcclScalarHost, comm);
    float value = 10;
    nccl_.api().all_reduce(&value, &value, 1, kNcclFloat32, op, comm, rank.stream);
    rank.finish();
    nccl_.api().destroy_op(op, comm);
    EXPECT_EQ(10.0f * static_cast<float>(size() * (size() - 1) / 2), value);
  });
}

TEST_P(FakeNcclTest, TheOtherCollectives) {
  with_ranks([&](const Rank& rank, NcclComm comm) {
    const int n = size();
    std::vector<int> mine(static_cast<std::size_t>(n), rank.rank);
    std::vector<int> all(static_cast<std::size_t>(n));
    nccl_.api().all_gather(mine.data(), all.data(), 1, kNcclInt32, comm, rank.stream);
    int part = 0;
    nccl_.api().reduce_scatter(mine.data(), &part, 1, kNcclInt32, kNcclMax, comm, rank.stream);
    double from_last = rank.rank;
    nccl_.api().broadcast(&from_last, &from_last, 1, kNcclFloat64, n - 1, comm, rank.stream);
    std::vector<int> sent;
    std::vector<int> received(static_cast<std::size_t>(n), -1);
    for (int peer = 0; peer < n; ++peer) {
      sent.push_back(100 * rank.rank + peer);
    }
    nccl_.api().group_start();
    for (int peer = 0; peer < n; ++peer) {
      const auto at = static_cast<std::size_t>(peer);
      nccl_.api().send(&sent[at], 1, kNcclInt32, peer, comm, rank.stream);
      nccl_.api().receive(&received[at], 1, kNcclInt32, peer, comm, rank.stream);
    }
    EXPECT_EQ(kNcclSuccess, nccl_.api().group_end());
    rank.finish();
    for (int peer = 0; peer < n; ++peer) {
      EXPECT_EQ(peer, all[static_cast<std::size_t>(peer)]);
      EXPECT_EQ(100 * peer + rank.rank, received[static_cast<std::size_t>(peer)]);
    }
    EXPECT_EQ(n - 1, part);
    EXPECT_EQ(n - 1, from_last);
  });
}

TEST_P(FakeNcclTest, NothingBlocksWhoAsksForIt) {
  nccl_.set_polls(2);
  const NcclUniqueId id = new_id();
  run_as_ranks(size(), [&](int number) {
    const Rank rank(cuda_, nccl_, number);
    const NcclComm comm = rank.join(id, size(), 0);
    const auto wait = [&] {
      int polls = 0;
      NcclResult state = kNcclInProgress;
      while (state == kNcclInProgress) {
        EXPECT_EQ(kNcclSuccess, rank.nccl.comm_async_error(comm, &state));
        ++polls;
      }
      EXPECT_EQ(kNcclSuccess, state);
      return polls;
    };
    EXPECT_LE(3, wait());
    float value = 1;
    EXPECT_EQ(kNcclInProgress,
              rank.nccl.all_reduce(&value, &value, 1, kNcclFloat32, kNcclSum, comm, rank.stream));
    EXPECT_EQ(3, wait());
    EXPECT_EQ(kNcclSuccess,
              rank.nccl.all_reduce(&value, &value, 1, kNcclFloat32, kNcclSum, comm, rank.stream));
    rank.finish();
    EXPECT_EQ(static_cast<float>(size() * size()), value);
    EXPECT_EQ(kNcclSuccess, rank.nccl.comm_finalize(comm));
    EXPECT_EQ(kNcclSuccess, rank.nccl.comm_destroy(comm));
  });
  EXPECT_EQ(0, nccl_.misuses()) << nccl_.complaint();
}

TEST_P(FakeNcclTest, AnAbortEndsWhatWaits) {
  if (size() == 1) {
    GTEST_SKIP() << "a single rank waits for nobody";
  }
  const NcclUniqueId id = new_id();
  run_as_ranks(size(), [&](int number) {
    const Rank rank(cuda_, nccl_, number);
    const NcclComm comm = rank.join(id, size());
    float value = 1;
    if (number != 0) {  // the first never comes
      rank.nccl.all_reduce(&value, &value, 1, kNcclFloat32, kNcclSum, comm, rank.stream);
      EXPECT_EQ(kCudaNotReady, rank.cuda.stream_query(rank.stream));
    }
    EXPECT_EQ(kNcclSuccess, rank.nccl.comm_abort(comm));
    rank.finish();
    EXPECT_EQ(1.0f, value);
  });
  EXPECT_EQ(0, nccl_.communicators());
}

TEST_P(FakeNcclTest, DifferentCallsAreFoundOut) {
  if (size() == 1) {
    GTEST_SKIP() << "a single rank agrees with itself";
  }
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
  if (size() > 1) {
    EXPECT_FALSE(ends(cuda_, nccl_, size(), false));
  }
}

TEST_P(FakeNcclTest, TellsWhoIssuedWhat) {
  with_ranks([&](const Rank& rank, NcclComm comm) {
    float value = 1;
    for (int i = 0; i < 2; ++i) {
      rank.nccl.all_reduce(&value, &value, 1, kNcclFloat32, kNcclSum, comm, rank.stream);
    }
    rank.finish();
  });
  for (int device = 0; device < size(); ++device) {
    EXPECT_EQ((std::vector<int>{0, 0}), nccl_.issued(device));
    EXPECT_EQ(1u, nccl_.issuing_threads(device));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, FakeNcclTest, testing::Values(1, 2, 4));

TEST(FakeNcclVersionTest, OlderLibrariesHaveFewerFunctions) {
  FakeCuda cuda;
  const FakeNccl nccl(cuda, nccl_version_code(2, 27, 7));
  EXPECT_EQ(nullptr, nccl.api().all_reduce_config);
  EXPECT_EQ(nullptr, nccl.api().comm_revoke);
}

}  // namespace
}  // namespace aiacc
