#include "csrc/core/dispatch/planner_input.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/coding.h"
#include "tests/cpp/support/process.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

constexpr Coding kInt8{WireFormat::kInt8Blocks, 256};
constexpr Coding kLargest{WireFormat::kLargest, 10'000};
constexpr Coding kRandom{WireFormat::kRandom, 10'000};
constexpr std::uint32_t kLanes = 8;

/// Lanes that the units of a large all-reduce of so many ranks take.
std::set<std::uint32_t> lanes_taken(const Coding& coding, int members) {
  Operation operation;
  operation.request = make_request("x", {std::int64_t{512} << 20});
  operation.request.wire = coding.format;
  operation.request.wire_detail = coding.detail;
  PlannerInput input;
  fill_planner_input({&operation}, false, members, input);
  Parameters parameters;
  parameters.lanes = kLanes;
  LaneLoads loads(3);
  UnitPlan plan;
  plan_units(input.tensors, parameters, 0, kLanes, loads, plan);
  std::set<std::uint32_t> taken;
  for (const PlannedUnit& unit : plan) {
    taken.insert(unit.lane);
  }
  return taken;
}

TEST(PlannerInput, WhatIsCodedPacksWithItsOwnOperation) {
  std::vector<Operation> operations(5);
  std::vector<Operation*> all;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    Operation& operation = operations[i];
    operation.request = make_request("x" + std::to_string(i), {8});
    if (i % 2 == 1) {
      operation.request.tensors.push_back(operation.request.tensors[0]);
      operation.request.wire = kInt8.format;
      operation.request.wire_detail = kInt8.detail;
      operation.buffers.resize(2);
    }
    all.push_back(&operation);
  }
  PlannerInput input;
  fill_planner_input(all, false, 2, input);
  std::vector<std::uint32_t> classes;
  for (const PlannedTensor& tensor : input.tensors) {
    classes.push_back(tensor.pack_class);
  }
  EXPECT_EQ((std::vector<std::uint32_t>{0, 1, 1, 0, 2, 2, 0}), classes);
}

TEST(PlannerInput, ManyRanksTakeFewLanesForBlocksAlone) {
  EXPECT_EQ(8U, lanes_taken(kInt8, 2).size());
  EXPECT_EQ(8U, lanes_taken(kInt8, 64).size());
  EXPECT_EQ(7U, lanes_taken(kInt8, 65).size());
  EXPECT_EQ((std::set<std::uint32_t>{3, 4, 5, 6}), lanes_taken(kInt8, 128));
  EXPECT_EQ((std::set<std::uint32_t>{3}), lanes_taken(kInt8, 512));
  EXPECT_EQ((std::set<std::uint32_t>{3}), lanes_taken(kInt8, 100'000));
  // Pairs are gathered, and what is random is summed, by the connections that there are anyway.
  EXPECT_EQ(8U, lanes_taken(kLargest, 100'000).size());
  EXPECT_EQ(8U, lanes_taken(kRandom, 100'000).size());
}

/// Who makes them answers the other ranks, who would take it for frozen.
TEST(PlannerInput, ZerosOfAJoinedRankAreNotClearedByWhoMakesThem) {
  constexpr std::int64_t kCount = std::int64_t{1} << 28;
  Response response;
  response.zeros = std::make_shared<const Request>(make_request("x", {kCount}));
  const std::size_t before = resident_memory();
  const auto operation = answer_with_zeros(response);
  EXPECT_FALSE(is_empty(*operation));
  EXPECT_TRUE(operation->zeros);
  EXPECT_LT(resident_memory() - before, sizeof(float) * kCount / 4);  // sanitizers take an eighth
  response.zeros = std::make_shared<const Request>(make_request("x", {0}));
  EXPECT_TRUE(is_empty(*answer_with_zeros(response)));
}

}  // namespace
}  // namespace aiacc
