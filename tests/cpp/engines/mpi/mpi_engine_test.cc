// Every rank of an MPI job runs the same tests in the same order:
//
//   mpirun -np N mpi_engine_test PLUGIN MPI_LIBRARY
//
// tests/parallel/launch/test_mpi_engine.py starts it in several shapes of a job. What all engines
// promise is in engine_suite.cc.

#include "csrc/engines/mpi/mpi_engine.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/mpi/mpi_loader.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/engines/engine_suite.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/process.h"

namespace aiacc {
namespace {

MpiIdentity identity;

int rank() { return identity.rank; }

int size() { return identity.size; }

/// This process is one of the ranks.
World mpi_ranks(const std::string& when = "") {
  return {"mpi" + when,
          std::vector<int>(static_cast<std::size_t>(size())),
          [](const EngineContext& context) { return create_mpi_engine(context); },
          true,
          rank()};
}

INSTANTIATE_TEST_SUITE_P(Mpi, EngineTest, testing::Values(mpi_ranks()), name_of_world);
/// Engines take over what those before them have left.
INSTANTIATE_TEST_SUITE_P(Mpi,
                         EngineSplitTest,
                         testing::Values(mpi_ranks("_first"), mpi_ranks("_again")),
                         name_of_world);
INSTANTIATE_TEST_SUITE_P(Mpi, EnginePartsTest, testing::Values(mpi_ranks()), name_of_world);

std::unique_ptr<Engine> create(int lanes = kLanes) {
  EngineContext context = context_of(mpi_ranks(), rank());
  context.lanes = lanes;
  return create_mpi_engine(context);
}

/// They are larger than the memory that a lane has for one, or for one that is under way.
TEST(MpiEngineTest, BuffersThatALaneTakesInSeveralSteps) {
  const auto engine = create();
  const std::vector<std::size_t> counts = uneven_counts(size(), 1'000'003);
  for (const int lane : {1, engine->express_lane()}) {
    check_all_reduce(*engine, lane, rank(), size(), 5'000'011, DataType::kBool, ReduceOp::kMin);
    check_pieces(*engine,
                 lane,
                 rank(),
                 size(),
                 {0, 1, 30'011, 0, 700'003, 5, 262'144, 17, 600'001, 3},
                 {DataType::kFloat32, ReduceOp::kMax, 0.5});
    check_broadcast(*engine, lane, rank(), size() - 1, 9'000'001);
    check_all_gather(*engine, lane, rank(), size(), 3'000'001);
    check_reduce_scatter(*engine, lane, rank(), counts, DataType::kFloat32, ReduceOp::kSum);
    check_all_to_all(*engine, lane, rank(), size(), 1'000'003);
  }
}

TEST(MpiEngineTest, NotANumberWins) {
  const auto engine = create();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    std::vector<float> data(40000, static_cast<float>(rank()));
    data[3] = rank() == size() - 1 ? NAN : 1.0f;
    data[39999] = rank() == 0 ? NAN : 1.0f;
    engine->all_reduce(0, data.data(), data.data(), data.size(), {DataType::kFloat32, op});
    EXPECT_TRUE(std::isnan(data[3]));
    EXPECT_TRUE(std::isnan(data[39999]));
    EXPECT_EQ(op == ReduceOp::kMin ? 0.0f : static_cast<float>(size() - 1), data[5]);
  }
}

/// Rounding depends on the order of additions, so this fails unless all ranks share one order.
/// Which of two NaNs a sum is depends on the order of two, which MPI does not promise.
TEST(MpiEngineTest, BitsAreEqualOnAllRanks) {
  const auto engine = create();
  const auto ranks = static_cast<std::size_t>(size());
  for (const std::size_t count : {500, 300001}) {
    auto data = any_elements<float>(count, static_cast<unsigned>(rank()));
    engine->all_reduce(0, data.data(), data.data(), count, kSum);
    std::vector<float> all(count * ranks);
    engine->all_gather(
        1, data.data(), all.data(), std::vector<std::size_t>(ranks, count * sizeof(float)));
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(same(data[i], all[r * count + i])) << "rank " << r << ", element " << i;
      }
    }
  }
}

TEST(MpiEngineTest, EnginesComeAndGo) {
  for (int i = 0; i < 50; ++i) {
    const auto engine = create(1 + i % 4);
    ASSERT_EQ(1 + i % 4, engine->lanes());
    check_all_reduce(*engine, 0, rank(), size(), 50001, DataType::kFloat32, ReduceOp::kSum);
    check_broadcast(*engine, engine->express_lane(), rank(), 0, 100);
  }
}

/// MPI cannot cancel what rank 0 never joins: it keeps the requests, but not the memory behind
/// them. Afterwards it is as good as new.
TEST(MpiEngineTest, AbortedOperationsKeepNoMemory) {
  if (size() == 1) {
    GTEST_SKIP() << "one rank is never blocked";
  }
  constexpr int kRounds = 8;
  std::size_t early = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto engine = create(3);
    std::vector<std::unique_ptr<BlockedCall>> blocked;
    for (int lane = 0; lane <= engine->express_lane(); ++lane) {  // each touches all its memory
      check_all_reduce(*engine, lane, rank(), size(), 1 << 20, DataType::kFloat32, ReduceOp::kSum);
      check_all_to_all(*engine, lane, rank(), size(), 100003);
    }
    for (int lane = 0; lane <= engine->express_lane() && rank() != 0; ++lane) {
      blocked.push_back(std::make_unique<BlockedCall>([&engine, lane] {
        std::vector<float> data(1 << 18, 1.0f);
        engine->all_reduce(lane, data.data(), data.data(), data.size(), kSum);
      }));
    }
    engine->abort(Status(Code::kShutdown, "stop now"));
    for (const auto& call : blocked) {
      expect_error(call->join(), Code::kShutdown);
    }
    if (round == 2) {  // MPI itself has all it needs by now
      early = resident_memory();
    }
  }
  // Five times four lanes have more than 80 MiB for MPI. It keeps the messages that rank 0 did not
  // ask for, which are a fraction of it.
  EXPECT_LT(resident_memory(), early + (std::size_t{40} << 20))
      << "after " << kRounds - 3 << " more aborts";
}

/// A broadcast is over for its root when the others may not have begun: nobody is in the middle of
/// anything, and yet their communicators do not fit together any more.
TEST(MpiEngineTest, AnAbortBetweenOperationsLeavesNoLaneOutOfStep) {
  if (size() == 1) {
    GTEST_SKIP() << "one rank is always in step";
  }
  for (int round = 0; round < 3; ++round) {
    const auto engine = create();
    check_broadcast(*engine, 0, rank(), 0, 100);
    std::atomic<bool> over{rank() != 0};
    BlockedCall root([&] {
      char byte = 1;
      if (rank() == 0) {
        // An error if this MPI waits for the others.
        status_of([&] { engine->broadcast(0, &byte, sizeof byte, 0); });
      }
      over = true;
    });
    for (int i = 0; i < 1000000 && !over; ++i) {
      std::this_thread::yield();
    }
    engine->abort(Status(Code::kShutdown, "stop now"));
    root.join();
  }
  const auto engine = create();
  check_every_operation(*engine, 0, rank(), size());
}

TEST(MpiEngineTest, RefusesAnotherNumbering) {
  EngineContext context;
  context.rank = rank();
  context.size = size() + 1;
  expect_error(status_of([&] { create_mpi_engine(context); }), Code::kInvalidArgument, {"mpirun"});
}

TEST(MpiLoaderTest, GathersPayloadsOfAnyLength) {
  for (int round = 0; round < 3; ++round) {
    const auto payload_of = [&](int r) {
      return std::string(static_cast<std::size_t>(r * 1000 * round), static_cast<char>('a' + r));
    };
    const std::vector<std::string> all = mpi_all_gather(payload_of(rank()));
    ASSERT_EQ(static_cast<std::size_t>(size()), all.size());
    for (int r = 0; r < size(); ++r) {
      EXPECT_EQ(payload_of(r), all[static_cast<std::size_t>(r)]);
    }
  }
}

TEST(MpiLoaderTest, IsIdempotent) {
  EXPECT_TRUE(mpi_viability().viable);
  EXPECT_EQ("", load_mpi("no such plug-in", "no such library"));
  const MpiIdentity again = mpi_initialize(4, 1);
  EXPECT_EQ(identity.rank, again.rank);
  EXPECT_EQ(identity.version, again.version);
}

}  // namespace

/// Returns the exit status. Its arguments are those of the process.
int run_tests(int argc, char** argv) {
  const std::string reason = load_mpi(argv[1], argv[2]);
  if (!reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return 1;
  }
  identity = mpi_initialize(0, 30);
  if (identity.rank == 0) {
    std::printf("%s: %d ranks\n", identity.version.c_str(), identity.size);
  }
  testing::InitGoogleTest(&argc, argv);  // makes the worlds
  return RUN_ALL_TESTS();
}

}  // namespace aiacc

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: mpirun -np N %s PLUGIN MPI_LIBRARY\n", argv[0]);
    return 2;
  }
  return aiacc::run_tests(argc, argv);
}
