#include "csrc/core/dispatch/dead_unit.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/hierarchical/hierarchical_engine.h"
#include "csrc/engines/shm/shm_engine.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/support/coordinators.h"
#include "tests/cpp/support/fakes/fake_cuda.h"
#include "tests/cpp/support/peers/deserter.h"
#include "tests/cpp/support/peers/desertion.h"

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

std::optional<std::string> reason_of(const std::vector<std::vector<LaneReport>>& lanes,
                                     const std::vector<int>& subset = {}) {
  const auto verdict = verdict_on(lanes, subset);
  return verdict ? std::optional(verdict->text) : std::nullopt;
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
    return watch.should_ask(waited_s, start + std::chrono::seconds(at_s));
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
  EXPECT_TRUE(watch.should_ask(2 * kLimit, now));
  EXPECT_EQ(watch.limit_s(now), kLimit);
  EXPECT_FALSE(watch.proof(verdict_on({{unit(1, 5, kStuck)}, {}}), now).has_value());
  EXPECT_GT(watch.limit_s(later(0.12)), 1000 * kLimit);
  EXPECT_FALSE(watch.should_ask(2 * kLimit, later(0.24)));
  EXPECT_EQ(watch.limit_s(later(0.13)), kLimit);
  EXPECT_TRUE(watch.should_ask(2 * kLimit, later(0.26)));
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
    const std::string reason = reason_of(lanes, subset).value_or("");
    EXPECT_EQ(text != nullptr, !reason.empty()) << what;
    EXPECT_TRUE(text == nullptr || reason.find(text) != std::string::npos) << reason;
  }
}

TEST(DeadUnit, NothingIsSaidOfUnknownSetsAndMissingAnswers) {
  EXPECT_FALSE(reason_of({{unit(1, 4, kStuck, 7)}, {}}).has_value());
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
    Bytes share;
    message.encode(share);
    if (rank == 0) {
      all.swap(share);
    } else {
      combine_rounds(all, share);
    }
  }
  EXPECT_LT(all.size(), 500U);
  RoundMessage message;
  message.decode(all);
  EXPECT_TRUE(message.answers.lanes_complete);
  ASSERT_EQ(message.answers.lanes.size(), kLanes);
  EXPECT_EQ(message.answers.lanes[0].ranks, RankSet(0, kRanks - 1));
  const auto text = dead_unit(message.answers, ProcessSetTable(kRanks), kLimit);
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->text.find("0 (for rank 4095), 1 (for rank 0), "), std::string::npos);
}

/// Ranks and what moves their bytes; the last rank deserts.
struct Watched {
  const char* name;
  Transport transport;
  std::vector<int> hosts;  ///< of the ranks; if all are one they share memory; none: sockets
  bool staged = false;     ///< tensors on GPUs pass through the host
};

const std::vector<int> kOneHost{0, 0, 0};

class DeadUnitTest : public testing::TestWithParam<Watched> {
 protected:
  DeadUnitTest() {
    world_.size = 3;
    world_.transport = GetParam().transport;
    world_.peer_timeout_s = 0.5;
    world_.options.unit_timeout_s = 1;
    world_.options.parameters.unit_bytes = 1 << 20;
    world_.make_engine = [](int rank, EngineContext* context, std::shared_ptr<FakeHub> hub) {
      std::unique_ptr<Engine> engine;
      if (context == nullptr) {
        engine = std::make_unique<FakeEngine>(std::move(hub), rank);
      } else if (GetParam().hosts.empty()) {
        engine = std::make_unique<TcpEngine>(*context);
      } else if (GetParam().hosts == kOneHost) {
        engine = std::make_unique<ShmEngine>(*context);
      } else {
        context->host_of = GetParam().hosts;
        engine = create_hierarchical_engine(*context);
      }
      return rank == kDeserter ? std::make_unique<Deserter>(std::move(engine)) : std::move(engine);
    };
    if (GetParam().staged) {
      world_.options.staging = [this]() -> const CudaDriver& { return cuda_.driver(); };
    }
  }

  /// Ranks that disagree after the dispatch all fail.
  void check(OpKind kind) {
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      check_desertion(
          *parts.coordinator, kind, rank, world_.size, kDeserter, GetParam().staged ? 0 : -1);
    });
  }

  static constexpr int kDeserter = 2;
  FakeCuda cuda_;
  CoordinatorWorld world_;
};

TEST_P(DeadUnitTest, AnAllReduceThatOneLeavesOutEnds) { check(OpKind::kAllreduce); }

TEST_P(DeadUnitTest, AnAllGatherThatOneLeavesOutEnds) { check(OpKind::kAllgather); }

/// Ranks that are not connected yet wait for the first one.
TEST_P(DeadUnitTest, AnAllToAllThatOneLeavesOutEnds) { check(OpKind::kAlltoall); }

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    DeadUnitTest,
    testing::Values(Watched{"InProcess", Transport::kInProcess, {}},
                    Watched{"Tcp", Transport::kTcp, {}},
                    Watched{"HierarchicalBetweenHosts", Transport::kTcp, {0, 0, 1}},
                    Watched{"HierarchicalInsideAHost", Transport::kTcp, {0, 1, 1}},
                    Watched{"SharedMemory", Transport::kTcp, kOneHost},
                    Watched{"Staged", Transport::kTcp, {}, true},
                    Watched{"StagedSharedMemory", Transport::kTcp, kOneHost, true},
                    Watched{"StagedHierarchical", Transport::kTcp, {0, 0, 1}, true}),
    [](const auto& test) { return std::string(test.param.name); });

Request large(const std::string& name) { return make_request(name, {100'000}); }

/// Rank 1 is on its way to the unit, for several times the limit.
TEST(UnitWatch, ARankThatIsNotThereYetIsWaitedFor) {
  CoordinatorWorld world;
  world.size = 3;
  world.options.unit_timeout_s = 0.1;
  world.options.parameters.unit_bytes = 1 << 20;
  world.before = [&](int rank, int lane, std::size_t) {
    if (rank == 1 && lane < 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(600));  // it computes
    }
  };
  with_coordinators(world, [&](int, RankParts& parts) {
    std::vector<float> data(100'000, 1);
    finish(*parts.coordinator, submit(*parts.coordinator, large("x"), data.data(), data.data()));
    EXPECT_EQ(data.back(), 3);
    sum(*parts.coordinator, "all are done", 1);
  });
}

}  // namespace
}  // namespace aiacc
