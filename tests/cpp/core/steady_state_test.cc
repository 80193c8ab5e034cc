// A job that does the same in every step: what a step costs besides moving the tensors.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/allocations.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

constexpr int kSteps = 200;

/// Tensors as a model has them: some share a unit, some are cut into several, of two types.
std::vector<Request> gradients() {
  std::vector<Request> requests;
  for (const std::int64_t extent : {10, 7000, 300, 1, 300, 2500, 12, 900}) {
    const std::string name =
        "gradient.of.a.layer.with.a.long.name." + std::to_string(requests.size());
    requests.push_back(make_request(name, {extent}));
    requests.push_back(make_request(name + ".double", {extent / 2 + 1}));
    requests.back().dtype = DataType::kFloat64;
  }
  return requests;
}

class SteadyState : public testing::TestWithParam<int> {};

TEST_P(SteadyState, AStepAllocatesNothing) {
  CoordinatorWorld world;
  world.size = GetParam();
  world.transport = Transport::kTcp;
  with_coordinators(world, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const std::vector<Request> requests = gradients();
    std::vector<std::vector<std::byte>> memory;
    for (const Request& request : requests) {
      memory.emplace_back(request.bytes());
    }
    std::vector<Handle> handles(requests.size());
    std::size_t fewest = allocations.load();
    for (int step = 0; step < kSteps; ++step) {
      const std::size_t before = allocations.load();
      for (std::size_t i = 0; i < requests.size(); ++i) {
        handles[i] = submit(coordinator, requests[i], memory[i].data(), memory[i].data());
      }
      for (const Handle handle : handles) {
        finish(coordinator, handle);
      }
      fewest = std::min(fewest, allocations.load() - before);
    }
    // Of all ranks together. A queue that gets longer than ever before grows: not in every step.
    EXPECT_EQ(0U, fewest) << "rank " << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SteadyState, testing::Values(1, 2, 3));

}  // namespace
}  // namespace aiacc
