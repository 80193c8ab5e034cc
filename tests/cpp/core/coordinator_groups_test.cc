#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

/// Groups, and the operations that distribute rows.
class CoordinatorGroupsTest : public testing::TestWithParam<WorldSetting> {
 protected:
  CoordinatorGroupsTest() {
    world_.size = GetParam().size;
    world_.transport = GetParam().transport;
  }
  int size() const { return world_.size; }
  float total() const { return static_cast<float>(size() * (size() + 1)) / 2; }

  CoordinatorWorld world_;
};

TEST_P(CoordinatorGroupsTest, AGroupOfSeveralTypesIsReducedUnderOneName) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 3; ++i) {  // a request first, then a bit
      std::vector<float> small(3, static_cast<float>(rank + 1));
      std::vector<std::int32_t> empty;
      std::vector<double> large(5000, rank + 1.0);  // more than one unit
      std::vector<double> sums(large.size());
      auto operation = coordinator.acquire();
      operation->request = make_request("g", {3});
      operation->request.more = {{DataType::kInt32, {0}}, {DataType::kFloat64, {50, 100}}};
      operation->input = operation->output = small.data();
      operation->more = {{empty.data(), empty.data(), {}, {}, {}},
                         {large.data(), sums.data(), {}, {}, {}}};
      const auto before = coordinator.stats();
      finish(coordinator, coordinator.submit(std::move(operation)));
      EXPECT_EQ(coordinator.stats().tensors - before.tensors, 1U);
      EXPECT_EQ(coordinator.stats().data_bytes - before.data_bytes, 12U + 40000U);
      EXPECT_EQ(small, std::vector<float>(3, total()));
      EXPECT_EQ(sums, std::vector<double>(5000, total()));
      EXPECT_EQ(large[0], rank + 1.0);
    }
  });
}

/// No member of a group is ready before all ranks have given the whole of it.
TEST_P(CoordinatorGroupsTest, GroupsOfDifferentSizesFailEverywhere) {
  if (size() < 2) {
    GTEST_SKIP() << "needs two ranks";
  }
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    float values[2] = {1, 2};
    auto operation = coordinator.acquire();
    operation->request = make_request("g", {1});
    operation->input = operation->output = &values[0];
    if (rank == 0) {
      operation->request.more = {{DataType::kFloat32, {1}}};
      operation->more = {{&values[1], &values[1], {}, {}, {}}};
    }
    const Handle handle = coordinator.submit(std::move(operation));
    const Status status = status_of([&] { coordinator.wait(handle); });
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("number of tensors 2"), std::string::npos) << status.message();
    EXPECT_EQ(sum(coordinator, "afterwards", 1), static_cast<float>(size()));
  });
}

TEST_P(CoordinatorGroupsTest, AGroupIsGatheredWithRowsOfItsOwn) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (int i = 0; i < 2; ++i) {
      const std::vector<std::uint8_t> first(static_cast<std::size_t>(rank),
                                            static_cast<std::uint8_t>(rank));
      const std::vector<std::uint8_t> second(6, static_cast<std::uint8_t>(10 + rank));
      auto operation = coordinator.acquire();
      operation->request = make_request("g", OpKind::kAllgather, {rank});
      operation->request.dtype = DataType::kUInt8;
      operation->request.more = {{DataType::kUInt8, {2, 3}}};
      operation->input = first.data();
      operation->more = {{second.data(), nullptr, {}, {}, {}}};
      const Handle handle = coordinator.submit(std::move(operation));
      auto done = coordinator.wait(handle);
      RawBytes expected_first;
      RawBytes expected_second;
      for (int r = 0; r < size(); ++r) {
        expected_first.insert(
            expected_first.end(), static_cast<std::size_t>(r), static_cast<std::uint8_t>(r));
        expected_second.insert(expected_second.end(), 6, static_cast<std::uint8_t>(10 + r));
      }
      EXPECT_EQ(done->gathered, expected_first);
      EXPECT_EQ(done->tensor(1).gathered, expected_second);
      EXPECT_EQ(done->tensor(1).first_extents,
                std::vector<std::int64_t>(static_cast<std::size_t>(size()), 2));
      done.reset();
      coordinator.release(handle);
    }
  });
}

TEST_P(CoordinatorGroupsTest, EqualRowsAreGatheredInMemoryOfTheCaller) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (const bool equal : {true, false}) {
      const std::int64_t rows = equal ? 3 : 3 + rank % 2;
      RawBytes room(static_cast<std::size_t>(4 * size()), 0xff);
      std::uint8_t* own = room.data() + 3 * rank;
      std::fill_n(own, rows, static_cast<std::uint8_t>(rank));
      auto operation = coordinator.acquire();
      operation->request = make_request("g", OpKind::kAllgather, {rows});
      operation->request.dtype = DataType::kUInt8;
      operation->input = own;
      operation->output = room.data();
      const Handle handle = coordinator.submit(std::move(operation));
      auto done = coordinator.wait(handle);
      RawBytes expected;
      for (int r = 0; r < size(); ++r) {
        expected.insert(expected.end(), equal ? 3 : 3 + r % 2, static_cast<std::uint8_t>(r));
      }
      if (equal || size() == 1) {
        EXPECT_TRUE(done->gathered.empty());
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), room.begin()));
        EXPECT_EQ(room.back(), 0xff);
      } else {
        EXPECT_EQ(done->gathered, expected);
      }
      done.reset();
      coordinator.release(handle);
    }
  });
}

TEST_P(CoordinatorGroupsTest, RowsOfAReduceScatterNeedNotComeOutEven) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (const std::int64_t rows : {0, 1, 3, 8, 700}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        std::vector<double> input(static_cast<std::size_t>(rows) * 2);
        std::iota(input.begin(), input.end(), 0.0);
        const std::vector<double> untouched = input;
        const std::int64_t mine = scattered_rows(rows, size(), rank);
        std::vector<double> output(static_cast<std::size_t>(mine) * 2);
        Request request = make_request("rs", OpKind::kReducescatter, {rows, 2});
        request.dtype = DataType::kFloat64;
        request.op = op;
        request.prescale = 2;
        request.postscale = 0.25;
        finish(coordinator, submit(coordinator, request, input.data(), output.data()));
        EXPECT_EQ(input, untouched);
        std::int64_t first = 0;
        for (int r = 0; r < rank; ++r) {
          first += scattered_rows(rows, size(), r);
        }
        const double factor = op == ReduceOp::kSum ? 0.5 * size() : 0.5;
        for (std::size_t i = 0; i < output.size(); ++i) {
          ASSERT_NEAR(
              output[i], factor * (static_cast<double>(first) * 2 + static_cast<double>(i)), 1e-9);
        }
      }
    }
  });
}

TEST_P(CoordinatorGroupsTest, RowsGoWhereTheSplitsSay) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (const int factor : {0, 1, 500}) {
      // Rank r sends (r + to) * factor rows to every rank; one more row is left over.
      Request request = make_request("a", OpKind::kAlltoall, {1, 2});
      std::vector<float> input(2);
      for (int to = 0; to < size(); ++to) {
        request.numbers.push_back(std::int64_t{rank + to} * factor);
        request.shape[0] += request.numbers.back();
        input.insert(input.end() - 2,
                     static_cast<std::size_t>(request.numbers.back()) * 2,
                     static_cast<float>(100 * rank + to));
      }
      const Handle handle = submit(coordinator, request, input.data(), nullptr);
      auto done = coordinator.wait(handle);
      std::vector<float> output(done->gathered.size() / sizeof(float));
      if (!output.empty()) {
        std::memcpy(output.data(), done->gathered.data(), done->gathered.size());
      }
      std::vector<float> expected;
      for (int from = 0; from < size(); ++from) {
        const std::int64_t rows = std::int64_t{from + rank} * factor;
        EXPECT_EQ(done->first_extents[static_cast<std::size_t>(from)], rows);
        expected.insert(expected.end(),
                        static_cast<std::size_t>(rows) * 2,
                        static_cast<float>(100 * from + rank));
      }
      EXPECT_EQ(output, expected);
      done.reset();
      coordinator.release(handle);
    }
  });
}

/// Orthogonal tensors add up, equal ones stay: each tensor of a unit for itself, and whole.
TEST_P(CoordinatorGroupsTest, AdaptiveSumsWeighWholeTensors) {
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const auto count = static_cast<std::size_t>(size());
    std::vector<float> orthogonal(count, 0);
    orthogonal[static_cast<std::size_t>(rank)] = 3;
    std::vector<double> equal(3000, 2);  // several units, were it cut
    auto operation = coordinator.acquire();
    operation->request = make_request("a", {size()});
    operation->request.op = ReduceOp::kAdasum;
    operation->request.postscale = 0.5;
    operation->request.more = {{DataType::kFloat64, {3000}}};
    operation->input = operation->output = orthogonal.data();
    operation->more = {{equal.data(), equal.data(), {}, {}, {}}};
    if ((size() & (size() - 1)) != 0) {
      const Status status = status_of([&] { coordinator.submit(operation); });
      EXPECT_EQ(status.code(), Code::kUnsupported);
      EXPECT_NE(status.message().find("power of two"), std::string::npos);
      sum(coordinator, "x", 1);
      return;
    }
    finish(coordinator, coordinator.submit(std::move(operation)));
    for (const float value : orthogonal) {
      EXPECT_FLOAT_EQ(value, 1.5F);
    }
    for (const double value : equal) {
      ASSERT_DOUBLE_EQ(value, 1);
    }
    Request integers = make_request("i", {1});
    integers.op = ReduceOp::kAdasum;
    integers.dtype = DataType::kInt32;
    EXPECT_EQ(status_of([&] {
                submit(coordinator, integers, orthogonal.data(), orthogonal.data());
              }).code(),
              Code::kInvalidArgument);
  });
}

TEST_P(CoordinatorGroupsTest, WhatCannotBeDistributedIsRefused) {
  with_coordinators(world_, [&](int, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    std::vector<Request> bad(6, make_request("a", OpKind::kAlltoall, {4}));
    bad[0].numbers.assign(static_cast<std::size_t>(size()) + 1, 0);
    bad[1].numbers.assign(static_cast<std::size_t>(size()), 0);
    bad[1].numbers.front() = -1;
    bad[2].numbers.assign(static_cast<std::size_t>(size()), 0);
    bad[2].numbers.back() = 5;
    bad[3] = make_request("scalar", OpKind::kReducescatter, {});
    bad[4] = make_request("op", OpKind::kReducescatter, {4});
    bad[4].op = ReduceOp::kMin;
    bad[5] = make_request("group", OpKind::kAllgather, {4});
    bad[5].more = {{DataType::kFloat32, {}}};
    float value = 0;
    for (const Request& request : bad) {
      const Status status = status_of([&] { submit(coordinator, request, &value, &value); });
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_NE(status.message().find(request.name), std::string::npos);
    }
    sum(coordinator, "x", 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorGroupsTest,
                         testing::Values(WorldSetting{1, Transport::kInProcess},
                                         WorldSetting{2, Transport::kInProcess},
                                         WorldSetting{4, Transport::kInProcess},
                                         WorldSetting{7, Transport::kInProcess}),
                         setting_name);

}  // namespace
}  // namespace aiacc
