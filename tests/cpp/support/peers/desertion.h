#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/coordinators.h"

namespace aiacc {

/// Large enough for a numbered lane.
inline constexpr std::int64_t kDesertedRows = 99'000;

/// One operation on tensors of GPU `device` (-1: in host memory) that rank `deserter` of `size`,
/// whose engine is a Deserter, leaves out: the same error must end it on all the others, and what
/// the deserter does next.
inline void check_desertion(Coordinator& coordinator,
                            OpKind kind,
                            int rank,
                            int size,
                            int deserter,
                            std::int32_t device = -1) {
  Request request = make_request("x", kind, {kDesertedRows});
  request.device = device;
  if (kind == OpKind::kAlltoall) {
    request.numbers.assign(static_cast<std::size_t>(size), kDesertedRows / size);
    request.numbers.back() += kDesertedRows % size;
  }
  std::vector<float> data(kDesertedRows, 1);
  const bool gathers = kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
  Status status = status_of([&] {
    finish(coordinator, submit(coordinator, request, data.data(), gathers ? nullptr : data.data()));
  });
  if (rank == deserter) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  if (status.ok()) {  // also on a GPU, where an operation is done when it is queued
    const std::string own = "only rank " + std::to_string(rank) + " comes here";
    status = status_of([&] { sum(coordinator, own, 1); });
  }
  expect_error(
      status,
      Code::kTimeout,
      {"('x') can never end", "rank(s) " + std::to_string(deserter) + " are done with it"});
}

}  // namespace aiacc
