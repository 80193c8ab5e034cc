#include "csrc/core/dispatch/dead_unit.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/hierarchical/hierarchical_device_engine.h"
#include "csrc/engines/hierarchical/hierarchical_engine.h"
#include "csrc/engines/shm/shm_engine.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/support/peers/deserters.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {
namespace {

constexpr double kLimit = 60;

constexpr bool kStuck = true;

LaneReport unit(std::uint32_t lane, std::uint64_t order, bool stuck, std::uint32_t set = 0) {
  LaneReport report;
  report.lane = lane;
  report.process_set = set;
  report.order = report.unit = order;
  report.stuck = stuck;
  report.tensors = "'t" + std::to_string(order) + "'";
  return report;
}

/// `lanes[r]` is what rank r runs.
std::optional<DeadUnit> verdict_on(const std::vector<std::vector<LaneReport>>& lanes,
                                   const std::vector<int>& subset = {}) {
  ProcessSetTable sets(static_cast<int>(lanes.size()));
  if (!subset.empty()) {
    sets.add(subset);
  }
  Answers answers;
  for (std::size_t rank = 0; rank < lanes.size(); ++rank) {
    const RankSet mine(static_cast<int>(rank));
    answers.ranks.add(mine);
    for (const LaneReport& report : lanes[rank]) {
      answers.lanes.push_back({report, mine});
    }
  }
  return dead_unit(answers, sets, kLimit);
}

TEST(DeadUnit, IsTheSameWhateverElseIsSaid) {
  const auto dead = verdict_on({{unit(1, 5, kStuck)}, {unit(1, 5, kStuck)}});
  ASSERT_TRUE(dead.has_value());
  EXPECT_TRUE(dead == verdict_on({{unit(1, 5, kStuck)}, {}}));
  EXPECT_FALSE(dead == verdict_on({{unit(1, 6, kStuck)}, {unit(1, 6, kStuck)}}));
  EXPECT_FALSE(dead == verdict_on({{unit(1, 5, kStuck, 1)}, {}}, {0, 1}));
  EXPECT_FALSE(dead == verdict_on({{}, {}}));
}

TEST(DeadUnitWatch, AsksWhenALaneHasWaitedForLongAndNotAgainSoon) {
  DeadUnitWatch watch(kLimit);
  const Clock::time_point start = Clock::now();
  const auto asks = [&](double waited_s, int at_s) {
    return waited_s >= watch.ask_after_s() && watch.should_ask(start + std::chrono::seconds(at_s));
  };
  EXPECT_FALSE(asks(kLimit, 0));
  EXPECT_TRUE(asks(1.125 * kLimit, 1));
  EXPECT_FALSE(asks(2 * kLimit, 60));
  EXPECT_TRUE(asks(2 * kLimit, 61));
}

TEST(DeadUnitWatch, OneAnswerProvesNothing) {
  const auto dead = verdict_on({{unit(1, 5, kStuck)}, {}});
  const auto another = verdict_on({{unit(1, 6, kStuck)}, {}});
  const Clock::time_point now = Clock::now();
  DeadUnitWatch watch(kLimit);
  EXPECT_FALSE(watch.proof(dead, now).has_value());
  EXPECT_FALSE(watch.proof(std::nullopt, now).has_value());  // it has ended meanwhile
  EXPECT_FALSE(watch.proof(dead, now).has_value());
  EXPECT_FALSE(watch.proof(another, now).has_value());
  EXPECT_EQ(watch.proof(another, now), another->text);
}

TEST(DeadUnitWatch, NothingIsStuckUntilLanesHadTimeToGoOn) {
  const Clock::time_point now = Clock::now();
  const auto later = [&](double part) {
    return now + std::chrono::milliseconds(static_cast<int>(part * kLimit * 1000));
  };
  DeadUnitWatch watch(kLimit);
  EXPECT_TRUE(watch.should_ask(now));
  EXPECT_EQ(watch.limit_s(now), kLimit);
  EXPECT_FALSE(watch.proof(verdict_on({{unit(1, 5, kStuck)}, {}}), now).has_value());
  EXPECT_GT(watch.limit_s(later(0.12)), 1000 * kLimit);
  EXPECT_FALSE(watch.should_ask(later(0.24)));
  EXPECT_EQ(watch.limit_s(later(0.13)), kLimit);
  EXPECT_TRUE(watch.should_ask(later(0.26)));
}

TEST(DeadUnit, IsAUnitThatNobodyKeepsAlive) {
  LaneReport in_a_ring = unit(1, 1, kStuck, 1);
  in_a_ring.ahead = 2;
  const LaneReport stuck = unit(1, 5, kStuck);
  const struct {
    const char* what;
    std::vector<std::vector<LaneReport>> lanes;
    std::vector<int> subset;
    const char* text;  ///< of the reason; none: it is alive
  } rows[] = {
      {"all wait",
       {{stuck}, {stuck}},
       {},
       "unit 5 of process set 0 on lane 1 ('t5') can never end"},
      {"all wait", {{stuck}, {stuck}}, {}, "rank(s) 0, 1 wait in it"},
      {"for whom each of them waits",
       {{in_a_ring}, {}, {in_a_ring}, {in_a_ring}},
       {0, 2, 3},
       "0 (for rank 3), 2 (for rank 0), 3 (for rank 2) wait"},
      {"the others are idle or further",
       {{stuck}, {}, {unit(1, 6, !kStuck)}, {unit(0, 4, !kStuck)}},
       {},
       "rank(s) 0 wait in it, rank(s) 1, 2, 3 are done with it"},
      {"a member computes or moves bytes", {{stuck}, {unit(1, 5, !kStuck)}, {}}, {}, nullptr},
      {"a member is in an earlier unit", {{stuck}, {unit(1, 4, !kStuck)}}, {}, nullptr},
      {"in one of another set",
       {{stuck}, {unit(1, 4, !kStuck, 1)}, {unit(1, 4, !kStuck, 1)}},
       {1, 2},
       nullptr},
      {"rank 1 waits in an earlier unit, for a rank that is done with it",
       {{stuck}, {unit(1, 4, kStuck, 1)}, {stuck}},
       {1, 2},
       "unit 4 of process set 1"},
      {"a rank outside of its set does not matter",
       {{unit(1, 3, !kStuck)}, {unit(1, 4, kStuck, 1)}, {}},
       {1, 2},
       "unit 4 of process set 1"}};
  for (const auto& [what, lanes, subset, text] : rows) {
    const auto verdict = verdict_on(lanes, subset);
    EXPECT_EQ(text != nullptr, verdict.has_value()) << what;
    if (verdict && text != nullptr) {
      expect_parts(verdict->text, {text});
    }
  }
}

TEST(DeadUnit, NothingIsSaidOfUnknownSetsAndMissingAnswers) {
  EXPECT_FALSE(verdict_on({{unit(1, 4, kStuck, 7)}, {}}).has_value());
  EXPECT_FALSE(dead_unit({}, ProcessSetTable(2), kLimit).has_value());
  Answers only;
  only.ranks = RankSet(0);
  only.lanes = {{unit(1, 4, kStuck), RankSet(0)}};
  EXPECT_FALSE(dead_unit(only, ProcessSetTable(2), kLimit).has_value());
  only.ranks.add(RankSet(1));
  EXPECT_TRUE(dead_unit(only, ProcessSetTable(2), kLimit).has_value());
  only.lanes_complete = false;
  EXPECT_FALSE(dead_unit(only, ProcessSetTable(2), kLimit).has_value());
}

TEST(DeadUnit, WhatRanksOfALargeJobSayAlikeIsSaidOnce) {
  constexpr int kRanks = 4096;
  constexpr std::uint32_t kLanes = 8;
  Bytes all;
  for (int rank = 0; rank < kRanks; ++rank) {
    RoundMessage message;
    message.answers.ranks = RankSet(rank);
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      LaneReport report = unit(lane, 5 + lane, kStuck);
      report.ahead = kRanks - 1;
      message.answers.lanes.push_back({report, RankSet(rank)});
    }
    if (rank == 0) {
      all = encoded(message);
    } else {
      combine_rounds(all, encoded(message));
    }
  }
  EXPECT_LT(all.size(), 500U);
  const RoundMessage message = decoded(all);
  EXPECT_TRUE(message.answers.lanes_complete);
  ASSERT_EQ(message.answers.lanes.size(), kLanes);
  EXPECT_EQ(message.answers.lanes[0].ranks, RankSet(0, kRanks - 1));
  const auto text = dead_unit(message.answers, ProcessSetTable(kRanks), kLimit);
  ASSERT_TRUE(text.has_value());
  expect_parts(text->text, {"0 (for rank 4095), 1 (for rank 0), "});
}

/// Ranks and what moves their bytes; the last rank deserts.
struct Watched {
  const char* name;
  Place place;
  std::vector<int> hosts;  ///< of the ranks; if all are one they share memory; none: a flat engine
  Transport transport = Transport::kTcp;
  bool host_lanes = false;  ///< between the hosts of tensors that go over NCCL
};

const std::vector<int> kOneHost{0, 0, 0};
constexpr double kPeerTimeout = 0.5;

class DeadUnitTest : public testing::TestWithParam<Watched> {
 protected:
  static constexpr int kRanks = 3;
  static constexpr int kDeserter = kRanks - 1;

  DeadUnitTest() {
    world_.peer_timeout_s = kPeerTimeout;
    world_.options.unit_timeout_s = 1;
    world_.options.parameters.unit_bytes = 1 << 20;
    world_.options.parameters.gpu_unit_bytes = 1 << 20;
  }

  static std::unique_ptr<Engine> engine_of(int rank,
                                           EngineContext* context,
                                           std::shared_ptr<FakeHub> hub) {
    if (context == nullptr) {
      return std::make_unique<FakeEngine>(std::move(hub), rank);
    }
    if (GetParam().hosts.empty()) {
      return std::make_unique<TcpEngine>(*context);
    }
    if (GetParam().hosts == kOneHost) {
      return std::make_unique<ShmEngine>(*context);
    }
    context->host_of = GetParam().hosts;
    return create_hierarchical_engine(*context);
  }
  std::unique_ptr<DeviceEngine> gpu_engine_of(int rank) {
    std::unique_ptr<DeviceEngine> engine = gpus_.engine(rank, world_.lanes);
    if (GetParam().hosts.empty()) {
      return engine;
    }
    EngineContext context = gpus_.context(rank, world_.lanes);
    context.host_of = GetParam().hosts;
    context.peer_timeout_s = kPeerTimeout;
    HostEngineFactory between;
    if (GetParam().host_lanes) {
      between = [](const EngineContext& job) { return std::make_unique<TcpEngine>(job); };
    }
    return create_hierarchical_device_engine(std::move(engine), context, between);
  }

  /// Ranks that disagree after the dispatch all fail.
  void check(OpKind kind) {
    if (GetParam().place == Place::kNccl) {
      world_.gpu = [this](int rank) {
        std::unique_ptr<DeviceEngine> engine = gpu_engine_of(rank);
        return rank == kDeserter ? std::make_unique<DeviceDeserter>(std::move(engine))
                                 : std::move(engine);
      };
    } else {
      world_.make_engine = [](int rank, EngineContext* context, std::shared_ptr<FakeHub> hub) {
        std::unique_ptr<Engine> engine = engine_of(rank, context, std::move(hub));
        return rank == kDeserter ? std::make_unique<Deserter>(std::move(engine))
                                 : std::move(engine);
      };
    }
    with_gpus(gpus_, GetParam().place, world_, world_.lanes, [&](int rank, RankParts& parts) {
      const int device = GetParam().place == Place::kHost ? -1 : rank;
      check_desertion(*parts.coordinator, kind, rank, kRanks, kDeserter, device);
    });
  }

  NcclWorld gpus_{kRanks};
  CoordinatorWorld world_{kRanks, GetParam().transport};
};

TEST_P(DeadUnitTest, AnAllReduceThatOneLeavesOutEnds) { check(OpKind::kAllreduce); }

TEST_P(DeadUnitTest, AnAllGatherThatOneLeavesOutEnds) { check(OpKind::kAllgather); }

/// Ranks that are not connected yet wait for the first one.
TEST_P(DeadUnitTest, AnAllToAllThatOneLeavesOutEnds) { check(OpKind::kAlltoall); }

const auto name_of_world = [](const auto& test) { return std::string(test.param.name); };

INSTANTIATE_TEST_SUITE_P(
    Hosts,
    DeadUnitTest,
    testing::Values(Watched{"Fake", Place::kHost, {}, Transport::kFake},
                    Watched{"Tcp", Place::kHost, {}},
                    Watched{"HierarchicalBetweenHosts", Place::kHost, {0, 0, 1}},
                    Watched{"HierarchicalInsideAHost", Place::kHost, {0, 1, 1}},
                    Watched{"SharedMemory", Place::kHost, kOneHost},
                    Watched{"Staged", Place::kStaged, {}},
                    Watched{"StagedSharedMemory", Place::kStaged, kOneHost},
                    Watched{"StagedHierarchical", Place::kStaged, {0, 0, 1}}),
    name_of_world);

const auto over_nccl =
    testing::Values(Watched{"Nccl", Place::kNccl, {}, Transport::kFake},
                    Watched{"Hierarchical", Place::kNccl, {0, 1, 1}, Transport::kFake},
                    Watched{"HostLanes", Place::kNccl, {0, 1, 2}, Transport::kFake, true},
                    Watched{"HostLanesAndNccl", Place::kNccl, {0, 1, 1}, Transport::kFake, true});
INSTANTIATE_TEST_SUITE_P(Gpus, DeadUnitTest, over_nccl, name_of_world);

/// Several times the limit of those who wait.
constexpr std::chrono::milliseconds kLate{800};

class LateUnitTest : public DeadUnitTest {
 protected:
  /// An all-reduce for which one rank is late, in what it does `before` on its GPU.
  template <class Before>
  void check_that_it_ends_well(Before before) {
    world_.options.unit_timeout_s = 0.2;
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      Submitter gpu(gpus_.cuda, parts, rank);
      before(rank, gpu);
      std::vector<float> data(kDesertedRows, 1);
      gpu.finish(gpu.submit(make_request("x"), data));
      EXPECT_EQ(data.back(), kRanks);
      sum(*parts.coordinator, "all are done", 1);
    });
  }
};

TEST_P(LateUnitTest, ARankThatIssuesLateIsWaitedFor) {
  world_.gpu = [this](int rank) {
    std::unique_ptr<DeviceEngine> engine = gpu_engine_of(rank);
    return rank != kDeserter ? std::move(engine)
                             : std::make_unique<DeviceLatecomer>(std::move(engine), [] {
                                 std::this_thread::sleep_for(kLate);  // it opens its GPU
                               });
  };
  check_that_it_ends_well([](int, Submitter&) {});
}

TEST_P(LateUnitTest, ARankWhoseGpuComputesIsWaitedFor) {
  world_.gpu = [this](int rank) { return gpu_engine_of(rank); };
  check_that_it_ends_well([this](int rank, Submitter& gpu) {
    if (rank == kDeserter) {
      gpus_.cuda.enqueue(gpu.stream(), [] { std::this_thread::sleep_for(kLate); });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus, LateUnitTest, over_nccl, name_of_world);

/// Rank 1 is on its way to the unit.
TEST(UnitWatch, ARankThatIsNotThereYetIsWaitedFor) {
  CoordinatorWorld world(3);
  world.options.unit_timeout_s = 0.1;
  world.options.parameters.unit_bytes = 1 << 20;
  world.before = [&](int rank, int lane, std::size_t) {
    if (rank == 1 && lane < 2) {
      std::this_thread::sleep_for(kLate);  // it computes
    }
  };
  with_coordinators(world, [&](int, RankParts& parts) {
    std::vector<float> data(kDesertedRows, 1);
    finish(*parts.coordinator, submit(*parts.coordinator, make_request("x"), data));
    EXPECT_EQ(data.back(), 3);
    sum(*parts.coordinator, "all are done", 1);
  });
}

}  // namespace
}  // namespace aiacc
