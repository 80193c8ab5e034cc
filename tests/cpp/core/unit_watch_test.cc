#include "csrc/core/unit_watch.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/coordinators.h"

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
std::optional<std::string> verdict(const std::vector<std::vector<LaneReport>>& lanes,
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

TEST(DeadUnit, AllWaitInIt) {
  const auto text = verdict({{unit(1, 5, kStuck)}, {unit(1, 5, kStuck)}});
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("unit 5 of process set 0 on lane 1 ('t5') can never end"), std::string::npos)
      << *text;
  EXPECT_NE(text->find("rank(s) 0, 1 wait in it"), std::string::npos) << *text;
}

TEST(DeadUnit, ForWhomEachOfThemWaits) {
  LaneReport in_a_ring = unit(1, 1, kStuck, 1);
  in_a_ring.ahead = 2;
  const auto text = verdict({{in_a_ring}, {}, {in_a_ring}, {in_a_ring}}, {0, 2, 3});
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("0 (for rank 3), 2 (for rank 0), 3 (for rank 2) wait"), std::string::npos)
      << *text;
}

TEST(DeadUnit, SomeWaitAndTheOthersAreIdleOrFurther) {
  const auto text =
      verdict({{unit(1, 5, kStuck)}, {}, {unit(1, 6, !kStuck)}, {unit(0, 4, !kStuck)}});
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("rank(s) 0 wait in it, rank(s) 1, 2, 3 are done with it"), std::string::npos)
      << *text;
}

TEST(DeadUnit, AMemberThatComputesOrMovesBytesKeepsItAlive) {
  EXPECT_FALSE(verdict({{unit(1, 5, kStuck)}, {unit(1, 5, !kStuck)}, {}}).has_value());
}

TEST(DeadUnit, AMemberInAnEarlierUnitOfTheLaneKeepsItAlive) {
  EXPECT_FALSE(verdict({{unit(1, 5, kStuck)}, {unit(1, 4, !kStuck)}}).has_value());
  EXPECT_FALSE(
      verdict({{unit(1, 5, kStuck)}, {unit(1, 4, !kStuck, 1)}, {unit(1, 4, !kStuck, 1)}}, {1, 2})
          .has_value());
}

TEST(DeadUnit, TheFirstInTheOrderOfAgreementIsNamed) {
  // Rank 0 waits for rank 1, which waits in an earlier unit for a rank that is done with it.
  const auto text =
      verdict({{unit(1, 5, kStuck)}, {unit(1, 4, kStuck, 1)}, {unit(1, 5, kStuck)}}, {1, 2});
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("unit 4 of process set 1"), std::string::npos) << *text;
}

TEST(DeadUnit, RanksOutsideOfItsSetDoNotMatter) {
  const auto text = verdict({{unit(1, 3, !kStuck)}, {unit(1, 4, kStuck, 1)}, {}}, {1, 2});
  ASSERT_TRUE(text.has_value());
}

TEST(DeadUnit, NothingIsSaidOfUnknownSetsAndMissingAnswers) {
  EXPECT_FALSE(verdict({{unit(1, 4, kStuck, 7)}, {}}).has_value());
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
  EXPECT_NE(text->find("0 (for rank 4095), 1 (for rank 0), "), std::string::npos);
}

/// An engine that leaves out what is not on the express lane: as if its rank had planned otherwise.
template <class Base>
class Deserter : public Base {
 public:
  using Base::Base;
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override {
    if (lane == this->express_lane()) {
      Base::all_reduce(lane, send, recv, count, reduction);
    }
  }
};

class UnitWatchTest : public testing::TestWithParam<Transport> {
 protected:
  UnitWatchTest() {
    world_.size = 3;
    world_.transport = GetParam();
    world_.options.unit_timeout_s = 1;
    world_.options.parameters.unit_bytes = 1 << 20;
  }
  CoordinatorWorld world_;
};

Request large(const std::string& name) { return make_request(name, {100'000}); }

TEST_P(UnitWatchTest, RanksThatDisagreeAfterTheDispatchAllFail) {
  world_.peer_timeout_s = 0.5;
  world_.make_engine = [](int rank, EngineContext* context, std::shared_ptr<FakeHub> hub) {
    std::unique_ptr<Engine> engine;
    if (rank == 2 && context != nullptr) {
      engine = std::make_unique<Deserter<TcpEngine>>(*context);
    } else if (rank == 2) {
      engine = std::make_unique<Deserter<FakeEngine>>(std::move(hub), rank);
    }
    return engine;
  };
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    std::vector<float> data(100'000, 1);
    Status status = status_of([&] {
      finish(*parts.coordinator, submit(*parts.coordinator, large("x"), data.data(), data.data()));
    });
    if (rank == 2) {
      EXPECT_TRUE(status.ok()) << status.message();
      status = status_of([&] { sum(*parts.coordinator, "only rank 2 comes here", 1); });
    }
    EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
    EXPECT_NE(status.message().find("('x') can never end"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("rank(s) 2 are done with it"), std::string::npos)
        << status.message();
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         UnitWatchTest,
                         testing::Values(Transport::kInProcess, Transport::kTcp),
                         [](const auto& test) {
                           return test.param == Transport::kTcp ? "Tcp" : "InProcess";
                         });

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
  });
}

}  // namespace
}  // namespace aiacc
