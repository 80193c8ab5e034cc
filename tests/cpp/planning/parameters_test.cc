#include "csrc/planning/parameters.h"

#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

TEST(Parameters, TheLowestRanksProposalForTheNextEpochWins) {
  const Parameters now{5, 100, 1};
  EXPECT_EQ(next_parameters(now, {}).epoch, 5U);
  EXPECT_EQ(next_parameters(now, {}).unit_bytes, 100U);
  const auto next = next_parameters(now, {{6, 200, 2}, {6, 300, 3}});
  EXPECT_EQ(next.epoch, 6U);
  EXPECT_EQ(next.unit_bytes, 200U);
  EXPECT_EQ(next.lanes, 2U);
  EXPECT_EQ(next_parameters(now, {{5, 200, 2}, {7, 300, 3}}).unit_bytes, 100U) << "others";
  EXPECT_EQ(next_parameters(now, {{5, 200, 2}, {6, 300, 3}}).unit_bytes, 300U);
}

TEST(Parameters, AlgorithmsHaveNames) {
  for (const Algorithm algorithm : {Algorithm::kAny, Algorithm::kRing, Algorithm::kTree}) {
    EXPECT_EQ(algorithm, algorithm_from(name_of(algorithm)));
  }
  EXPECT_EQ(Algorithm::kAny, algorithm_from("auto"));
  EXPECT_THROW(algorithm_from("star"), Error);
  EXPECT_THROW(algorithm_from(""), Error);
}

TEST(Parameters, WhatNoEngineCanDoIsRefused) {
  EXPECT_NO_THROW(check_parameters({0, 1, kMaxLanes}));
  EXPECT_NO_THROW(check_parameters({0, 1, 2}, 2));
  EXPECT_THROW(check_parameters({0, 0, 1}), Error);
  EXPECT_THROW(check_parameters({0, 1, 0}), Error);
  EXPECT_THROW(check_parameters({0, 1, 3}, 2), Error);
  for (const std::uint8_t weight : {0, kFullWeight + 1}) {
    Parameters parameters;
    parameters.weights[kMaxLanes - 1] = weight;
    EXPECT_THROW(check_parameters(parameters), Error);
  }
}

}  // namespace
}  // namespace aiacc
