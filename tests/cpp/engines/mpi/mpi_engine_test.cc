// Every rank of an MPI job runs the same tests in the same order:
//
//   mpirun -np N mpi_engine_test PLUGIN MPI_LIBRARY
//
// tests/parallel/launch/test_mpi_engine.py starts it in several shapes of a job.

#include "csrc/engines/mpi/mpi_engine.h"

#include <algorithm>
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
#include "tests/cpp/support/process.h"

namespace aiacc {
namespace {

constexpr int kLanes = 3;

MpiIdentity identity;

int rank() { return identity.rank; }

int size() { return identity.size; }

std::unique_ptr<Engine> create(int lanes = kLanes) {
  EngineContext context;
  context.rank = rank();
  context.size = size();
  context.lanes = lanes;
  return create_mpi_engine(context);
}

TEST(MpiEngineTest, AllReduceEveryTypeAndOp) {
  const auto engine = create();
  for (const DataType dtype : all_dtypes()) {
    for (const ReduceOp op : engine_ops()) {
      for (const std::size_t count : {7, 30011}) {
        for (const int lane : {0, engine->express_lane()}) {
          check_all_reduce(*engine, lane, rank(), size(), count, dtype, op);
        }
      }
    }
  }
}

TEST(MpiEngineTest, AllReduceEveryCount) {
  const auto engine = create();
  for (const std::size_t count : {0, 1, 2, 3, 63, 2048, 2049, 65536, 300001, 5000011}) {
    for (const int lane : {1, engine->express_lane()}) {
      check_all_reduce(*engine, lane, rank(), size(), count, DataType::kFloat32, ReduceOp::kSum);
      check_all_reduce(*engine, lane, rank(), size(), count, DataType::kBool, ReduceOp::kMin);
    }
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

TEST(MpiEngineTest, LanesWorkAtTheSameTime) {
  const auto engine = create();
  std::vector<std::thread> threads;
  for (int lane = 0; lane <= kLanes; ++lane) {
    threads.emplace_back([&, lane] {
      try {
        for (std::size_t i = 0; i < 20; ++i) {
          const std::size_t count = lane == kLanes ? 100 + i : 100000 + i * 1000;
          check_all_reduce(*engine, lane, rank(), size(), count, DataType::kInt32, ReduceOp::kSum);
        }
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// Rounding depends on the order of additions, so this fails unless all ranks share one order.
/// Which of two NaNs a sum is depends on the order of two, which MPI does not promise.
TEST(MpiEngineTest, BitsAreEqualOnAllRanks) {
  const auto engine = create();
  const auto ranks = static_cast<std::size_t>(size());
  for (const std::size_t count : {500, 300001}) {
    auto data = any_elements<float>(count, static_cast<unsigned>(rank()));
    engine->all_reduce(0, data.data(), data.data(), count, {DataType::kFloat32, ReduceOp::kSum});
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

/// The long ones are larger than the memory that a lane has for one that is under way.
TEST(MpiEngineTest, SeveralAreUnderWayOnALane) {
  const auto engine = create();
  const std::vector<std::size_t> counts = {0, 1, 30'011, 0, 700'003, 5, 262'144, 17, 600'001, 3};
  for (const int lane : {0, engine->express_lane()}) {
    check_pieces(*engine, lane, rank(), size(), counts, {DataType::kFloat16, ReduceOp::kMax, 0.5});
  }
  check_pieces(*engine, 1, rank(), size(), {1, 0, 3'001, 7}, {DataType::kInt32, ReduceOp::kSum});
}

/// Rank 0 starts what it never finishes, the others wait for what it never starts.
TEST(MpiEngineTest, AbortEndsWhatIsUnderWay) {
  if (size() == 1) {
    GTEST_SKIP() << "one rank is never blocked";
  }
  for (int round = 0; round < 3; ++round) {
    const auto engine = create();
    std::vector<std::vector<float>> data(3, std::vector<float>(100'000, 1.0f));
    const int started = rank() == 0 ? 1 : 3;
    for (int ticket = 0; ticket < started; ++ticket) {
      engine->start_all_reduce(0,
                               ticket,
                               data[static_cast<std::size_t>(ticket)].data(),
                               data[0].size(),
                               {DataType::kFloat32, ReduceOp::kSum});
    }
    std::atomic<bool> running{false};
    Status seen;
    std::thread blocked([&] {
      try {
        for (int ticket = 0; ticket < started && rank() != 0; ++ticket) {
          running = true;
          engine->finish_all_reduce(0, ticket);
        }
      } catch (const Error& error) {
        seen = error.status();
      }
      running = true;
    });
    while (!running) {
      std::this_thread::yield();
    }
    engine->abort(Status(Code::kShutdown, "stop now"));
    blocked.join();
    EXPECT_EQ(rank() == 0 ? "" : "stop now", seen.message());
    EXPECT_THROW(engine->finish_all_reduce(0, 0), Error);
  }
  const auto engine = create();
  check_every_operation(*engine, 0, rank(), size());
}

TEST(MpiEngineTest, BroadcastFromEveryRoot) {
  const auto engine = create();
  for (int root = 0; root < size(); ++root) {
    for (const std::size_t bytes : {0, 1, 1000, 700001, 9000001}) {
      check_broadcast(*engine, 2, rank(), root, bytes);
      check_broadcast(*engine, engine->express_lane(), rank(), root, bytes);
    }
  }
}

TEST(MpiEngineTest, AllGatherOfUnequalParts) {
  const auto engine = create();
  for (const std::size_t scale : {0, 3, 100003, 3000001}) {
    check_all_gather(*engine, 1, rank(), size(), scale);
    check_all_gather(*engine, engine->express_lane(), rank(), size(), scale);
  }
}

TEST(MpiEngineTest, ReduceScatterEveryTypeAndOp) {
  const auto engine = create();
  for (const DataType dtype : all_dtypes()) {
    for (const ReduceOp op : engine_ops()) {
      for (const std::size_t scale : {3, 10007}) {
        for (const int lane : {0, engine->express_lane()}) {
          check_reduce_scatter(*engine, lane, rank(), uneven_counts(size(), scale), dtype, op);
        }
      }
    }
  }
}

TEST(MpiEngineTest, ReduceScatterEveryCount) {
  const auto engine = create();
  std::vector<std::size_t> only_last(static_cast<std::size_t>(size()), 0);
  only_last.back() = 2000003;
  for (const std::size_t scale : {0, 1, 17, 4096, 1000003}) {
    const std::vector<std::size_t> counts = uneven_counts(size(), scale);
    check_reduce_scatter(*engine, 1, rank(), counts, DataType::kFloat32, ReduceOp::kSum);
    check_reduce_scatter(*engine, 1, rank(), counts, DataType::kUInt8, ReduceOp::kMin);
  }
  check_reduce_scatter(*engine, 1, rank(), only_last, DataType::kFloat64, ReduceOp::kSum);
}

TEST(MpiEngineTest, AllToAllOfUnequalPieces) {
  const auto engine = create();
  for (const std::size_t scale : {0, 1, 1000, 1000003}) {
    for (const int lane : {2, engine->express_lane()}) {
      check_all_to_all(*engine, lane, rank(), size(), scale);
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

/// Rank 0 joins the first operation of every lane only, so the others are stuck until the abort.
/// Afterwards MPI is as good as new.
TEST(MpiEngineTest, AbortReachesEveryBlockedLane) {
  if (size() == 1) {
    GTEST_SKIP() << "one rank is never blocked";
  }
  for (int round = 0; round < 5; ++round) {
    const auto engine = create();
    std::vector<Status> seen(kLanes + 1);
    std::atomic<int> done_once{0};
    std::vector<std::thread> threads;
    for (int lane = 0; lane <= kLanes; ++lane) {
      threads.emplace_back([&, lane] {
        std::vector<float> data(1 << 18, 1.0f);
        try {
          for (int i = 0; i == 0 || rank() != 0; ++i) {
            engine->all_reduce(
                lane, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kMax});
            done_once += i == 0 ? 1 : 0;
          }
        } catch (const Error& error) {
          seen[static_cast<std::size_t>(lane)] = error.status();
        }
      });
    }
    while (done_once <= kLanes) {
      std::this_thread::yield();
    }
    engine->abort(Status(Code::kShutdown, "stop now"));
    engine->abort(Status(Code::kInternal, "too late"));
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const Status& status : seen) {
      EXPECT_EQ(rank() == 0 ? Code::kOk : Code::kShutdown, status.code());
      EXPECT_EQ(rank() == 0 ? "" : "stop now", status.message());
    }
    float value = 0;
    EXPECT_THROW(engine->broadcast(0, &value, sizeof value, 0), Error);
  }
  const auto engine = create();
  check_all_reduce(*engine, 0, rank(), size(), 300001, DataType::kFloat32, ReduceOp::kSum);
}

/// MPI cannot cancel what rank 0 never joins: it keeps the requests, but not the memory behind
/// them.
TEST(MpiEngineTest, AbortedOperationsKeepNoMemory) {
  if (size() == 1) {
    GTEST_SKIP() << "one rank is never blocked";
  }
  constexpr int kRounds = 8;
  std::size_t early = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto engine = create();
    for (int lane = 0; lane <= kLanes; ++lane) {  // so that every lane has touched its memory
      check_all_reduce(*engine, lane, rank(), size(), 1 << 20, DataType::kFloat32, ReduceOp::kSum);
      check_all_to_all(*engine, lane, rank(), size(), 100003);
    }
    std::vector<std::thread> threads;
    std::atomic<int> running{0};
    std::atomic<int> failed{0};
    for (int lane = 0; lane <= kLanes && rank() != 0; ++lane) {
      threads.emplace_back([&, lane] {
        std::vector<float> data(1 << 18, 1.0f);
        ++running;
        try {
          engine->all_reduce(
              lane, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum});
        } catch (const Error&) {
          ++failed;
        }
      });
    }
    while (running < static_cast<int>(threads.size())) {
      std::this_thread::yield();
    }
    engine->abort(Status(Code::kShutdown, "stop now"));
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(running.load(), failed.load());
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
    std::thread root([&] {
      char byte = 1;
      try {
        if (rank() == 0) {
          engine->broadcast(0, &byte, sizeof byte, 0);
        }
      } catch (const Error&) {  // this MPI waits for the others
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

/// Runs `body(part, index)` with an engine among `members`, if this rank is one of them.
template <class Body>
void with_part(Engine& engine, const std::vector<int>& members, std::uint32_t split_id, Body body) {
  const auto found = std::find(members.begin(), members.end(), rank());
  if (found != members.end()) {
    const auto part = engine.split(members, split_id);
    EXPECT_EQ(engine.lanes(), part->lanes());
    EXPECT_STREQ(engine.name(), part->name());
    body(*part, static_cast<int>(found - members.begin()));
  }
}

/// Twice, so that the second engine takes over what the first has left.
TEST(MpiSplitTest, EverySubsetWorksOnEveryLane) {
  for (int round = 0; round < 2; ++round) {
    const auto engine = create();
    for (std::uint32_t mask = 1; mask < (1u << size()); ++mask) {
      std::vector<int> members;
      for (int member = 0; member < size(); ++member) {
        if ((mask >> member & 1u) != 0) {
          members.push_back(member);
        }
      }
      with_part(*engine, members, mask, [&](Engine& part, int index) {
        for (int lane = 0; lane <= part.express_lane(); ++lane) {
          check_every_operation(part, lane, index, static_cast<int>(members.size()));
        }
      });
    }
    check_every_operation(*engine, 0, rank(), size());
  }
}

/// A rank in the middle is in two parts and uses them from two threads, which also make them.
TEST(MpiSplitTest, OverlappingPartsWorkAtTheSameTime) {
  const auto engine = create();
  std::vector<std::thread> threads;
  for (int first = 0; first + 1 < size(); ++first) {
    threads.emplace_back([&, first] {
      try {
        for (std::uint32_t i = 0; i < 3; ++i) {
          const auto split_id = static_cast<std::uint32_t>(first) * 3 + i;
          with_part(*engine, {first, first + 1}, split_id, [&](Engine& part, int index) {
            for (int lane = 0; lane <= part.express_lane(); ++lane) {
              check_every_operation(part, lane, index, 2);
            }
          });
        }
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  check_every_operation(*engine, 0, rank(), size());
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(MpiSplitTest, AbortReachesOneEngineAndNoOther) {
  if (size() == 1) {
    GTEST_SKIP() << "one rank is never blocked";
  }
  const auto engine = create();
  std::vector<int> all;
  for (int member = 0; member < size(); ++member) {
    all.push_back(member);
  }
  const auto spared = engine->split(all, 2);
  {
    const auto doomed = engine->split(all, 1);
    Status seen;
    std::atomic<bool> running{false};
    std::thread blocked([&] {
      std::vector<float> data(1 << 18, 1.0f);
      running = true;
      try {
        while (rank() != 0) {  // which never comes
          doomed->all_reduce(
              0, data.data(), data.data(), data.size(), {DataType::kFloat32, ReduceOp::kSum});
        }
      } catch (const Error& error) {
        seen = error.status();
      }
    });
    while (!running) {
      std::this_thread::yield();
    }
    doomed->abort(Status(Code::kShutdown, "stop now"));
    blocked.join();
    EXPECT_EQ(rank() == 0 ? "" : "stop now", seen.message());
  }
  check_every_operation(*spared, 0, rank(), size());
  check_every_operation(*engine, 0, rank(), size());
  const auto again = engine->split(all, 3);
  check_every_operation(*again, 0, rank(), size());
}

TEST(MpiSplitTest, AbortOfTheWholeEndsAWaitingSplit) {
  if (size() == 1) {
    GTEST_SKIP() << "one rank waits for nobody";
  }
  {
    const auto engine = create();
    if (rank() == 1) {
      std::atomic<bool> running{false};
      Status seen;
      std::thread waiting([&] {
        running = true;
        try {
          engine->split({0, 1}, 7);  // rank 0 never comes
        } catch (const Error& error) {
          seen = error.status();
        }
      });
      while (!running) {
        std::this_thread::yield();
      }
      engine->abort(Status(Code::kShutdown, "stop now"));
      waiting.join();
      EXPECT_EQ("stop now", seen.message());
    }
  }
  // What the wait has left in MPI does not disturb the same split of the next engine.
  const auto engine = create();
  with_part(*engine, {0, 1}, 7, [&](Engine& part, int index) {
    check_every_operation(part, 0, index, 2);
  });
}

TEST(MpiEngineTest, RefusesAnotherNumbering) {
  EngineContext context;
  context.rank = rank();
  context.size = size() + 1;
  try {
    create_mpi_engine(context);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kInvalidArgument, error.code());
    EXPECT_NE(std::string::npos, std::string(error.what()).find("mpirun")) << error.what();
  }
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

/// Returns the exit status.
int run_tests(const char* plugin, const char* library) {
  const std::string reason = load_mpi(plugin, library);
  if (!reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return 1;
  }
  identity = mpi_initialize(0, 30);
  if (identity.rank == 0) {
    std::printf("%s: %d ranks\n", identity.version.c_str(), identity.size);
  }
  return RUN_ALL_TESTS();
}

}  // namespace aiacc

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: mpirun -np N %s PLUGIN MPI_LIBRARY\n", argv[0]);
    return 2;
  }
  return aiacc::run_tests(argv[1], argv[2]);
}
