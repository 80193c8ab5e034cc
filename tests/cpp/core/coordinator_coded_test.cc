#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/engines/shm/shm_engine.h"
#include "tests/cpp/engines/coded_sums.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

constexpr Coding kInt8{WireFormat::kInt8Blocks, 128};
constexpr Coding kLargest{WireFormat::kLargest, 100'000 + Coding::kExact};
constexpr Coding kCodings[] = {
    kInt8, {WireFormat::kInt4Blocks, 256}, {WireFormat::kFloat8Blocks, 256}, kLargest};

/// All-reduces that travel coded, of tensors in host memory.
class CoordinatorCodedTest : public testing::TestWithParam<WorldSetting> {
 protected:
  CoordinatorCodedTest() {
    world_.size = GetParam().size;
    world_.transport = GetParam().transport;
  }
  int size() const { return world_.size; }

  CoordinatorWorld world_;
};

Request coded_request(const std::string& name, std::size_t count, const Coding& coding) {
  Request request = make_request(name, {static_cast<std::int64_t>(count)});
  request.wire = coding.format;
  request.wire_detail = coding.detail;
  return request;
}

/// Hardly any magnitudes of their sums are equal: which of those is the largest is left to chance.
CodedRank given(int rank, std::size_t count, std::uint32_t step = 0) {
  const auto seed = static_cast<std::uint32_t>(100 * rank) + 7 * step;
  CodedRank given{exact_floats(count, seed), exact_floats(count, seed + 1)};
  for (float& kept : given.residual) {
    kept /= 128;
  }
  return given;
}

/// What `ranks` get, with the residuals that they have.
std::vector<CodedRank> summed(std::vector<CodedRank> ranks, const Coding& coding) {
  std::vector<CodedRank*> all;
  for (CodedRank& rank : ranks) {
    all.push_back(&rank);
  }
  coded_sum(all, coding);
  return ranks;
}

Handle submit_in_place(Coordinator& coordinator, const Request& request, CodedRank& mine) {
  auto operation = coordinator.acquire();
  operation->request = request;
  operation->input = operation->output = mine.values.data();
  operation->residual = mine.residual.data();
  return coordinator.submit(std::move(operation));
}

/// One of them has no residual, and one is empty; input and output are the same or not.
TEST_P(CoordinatorCodedTest, AGroupIsCodedAsOneTensorWithItsFactors) {
  const std::vector<std::size_t> counts = {300, 5, 0, 1000};
  for (const Coding& coding : kCodings) {
    std::vector<CodedRank> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      ranks.push_back(given(rank, 1305));
      for (float& value : ranks.back().values) {
        value *= 0.5F;
      }
      std::fill_n(ranks.back().residual.begin() + 300, 5, 0.0F);
    }
    const std::vector<CodedRank> expected = summed(ranks, coding);
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      Coordinator& coordinator = *parts.coordinator;
      CodedRank mine = given(rank, 1305);
      Floats& kept = mine.residual;
      Floats results(1000);
      auto operation = coordinator.acquire();
      operation->request = coded_request("g", counts[0], coding);
      operation->request.prescale = 0.5;
      operation->request.postscale = 4;
      for (std::size_t i = 1; i < counts.size(); ++i) {
        operation->request.more.push_back(
            {DataType::kFloat32, {static_cast<std::int64_t>(counts[i])}});
      }
      operation->more.resize(3);
      std::size_t at = 0;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        TensorBuffers& buffers = operation->tensor(i);
        buffers.input = mine.values.data() + at;
        buffers.output = i == 3 ? results.data() : mine.values.data() + at;
        buffers.residual = i == 1 ? nullptr : kept.data() + at;
        at += counts[i];
      }
      const auto before = coordinator.stats();
      finish(coordinator, coordinator.submit(std::move(operation)));
      EXPECT_EQ(1U, coordinator.stats().units - before.units);
      const CodedRank& wanted = expected[static_cast<std::size_t>(rank)];
      EXPECT_EQ(exact_floats(1305, static_cast<std::uint32_t>(100 * rank))[400], mine.values[400])
          << "the input of another output";
      std::copy(results.begin(), results.end(), mine.values.begin() + 305);
      for (std::size_t i = 0; i < 1305; ++i) {
        ASSERT_EQ(4 * wanted.values[i], mine.values[i]) << name_of(coding.format) << " " << i;
        if (i < 300 || i >= 305) {
          ASSERT_EQ(wanted.residual[i], kept[i]) << name_of(coding.format) << " " << i;
        }
      }
    });
  }
}

TEST_P(CoordinatorCodedTest, WhatIsLostOfATensorDoesNotDependOnOthers) {
  std::vector<CodedRank> ranks[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    for (int rank = 0; rank < size(); ++rank) {
      ranks[i].push_back(given(rank, 200, i));
    }
  }
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    const auto index = static_cast<std::size_t>(rank);
    std::vector<CodedRank> mine;
    for (const auto& one : ranks) {
      mine.push_back(one[index]);
    }
    const auto before = parts.coordinator->stats();
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < 3; ++i) {
      const Request request = coded_request("t" + std::to_string(i), 200, kLargest);
      handles.push_back(submit_in_place(*parts.coordinator, request, mine[i]));
    }
    for (std::size_t i = 0; i < 3; ++i) {
      finish(*parts.coordinator, handles[i]);
      const CodedRank wanted = summed(ranks[i], kLargest)[index];
      expect_equal_bits(wanted.values, mine[i].values, "sum");
      expect_equal_bits(wanted.residual, mine[i].residual, "residual");
    }
    EXPECT_EQ(3U, parts.coordinator->stats().units - before.units);
  });
}

/// Units of 4096 bytes on the wire, times the stretch of 16, in parts of their own residuals.
TEST_P(CoordinatorCodedTest, ALargeTensorIsCutWithItsResidual) {
  constexpr std::size_t kCount = 200'003;
  for (const Coding& coding : {kInt8, kLargest}) {
    std::vector<CodedRank> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      ranks.push_back(given(rank, kCount));
    }
    const std::vector<CodedRank> before = ranks;
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      const auto stats = parts.coordinator->stats();
      finish(*parts.coordinator,
             submit_in_place(*parts.coordinator,
                             coded_request("x", kCount, coding),
                             ranks[static_cast<std::size_t>(rank)]));
      EXPECT_LT(1U, parts.coordinator->stats().units - stats.units);
      EXPECT_EQ(kCount, parts.coordinator->stats().data_bytes - stats.data_bytes);
    });
    for (std::size_t i = 0; i < kCount; ++i) {
      double error = ranks[0].values[i];
      double magnitude = 0;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        ASSERT_EQ(ranks[0].values[i], ranks[r].values[i]) << i;
        error += ranks[r].residual[i] - before[r].values[i] - before[r].residual[i];
        magnitude += std::abs(before[r].values[i]) + std::abs(before[r].residual[i]);
      }
      // As in engines/coded_all_reduce_test.cc.
      ASSERT_LE(std::abs(error), 0x1p-24 * (2 * size() + 2) * magnitude) << i;
    }
  }
}

/// It keeps no residuals of them: what it lost of a sum, as the owner of a share, would be lost.
TEST_P(CoordinatorCodedTest, WhileARankHasJoinedNothingIsCoded) {
  for (const Coding& coding : kCodings) {
    Floats total(700, 0.0F);
    std::vector<CodedRank> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      ranks.push_back(given(rank, 700));
      for (std::size_t i = 0; rank > 0 && i < total.size(); ++i) {
        total[i] += ranks.back().values[i];
      }
    }
    const std::vector<CodedRank> expected = summed(ranks, coding);
    with_coordinators(world_, [&](int rank, RankParts& parts) {
      Coordinator& coordinator = *parts.coordinator;
      const Request request = coded_request("x", 700, coding);
      for (int step = 0; rank != 0 && step < 3; ++step) {  // as a request, then by a bit
        CodedRank mine = given(rank, 700);
        finish(coordinator, submit_in_place(coordinator, request, mine));
        expect_equal_bits(total, mine.values, name_of(coding.format));
        expect_equal_bits(given(rank, 700).residual, mine.residual, name_of(coding.format));
      }
      finish(coordinator,
             submit(coordinator, make_request("", OpKind::kJoin, {}), nullptr, nullptr));
      CodedRank mine = given(rank, 700);
      finish(coordinator, submit_in_place(coordinator, request, mine));
      const CodedRank& wanted = expected[static_cast<std::size_t>(rank)];
      expect_equal_bits(wanted.values, mine.values, name_of(coding.format));
      expect_equal_bits(wanted.residual, mine.residual, name_of(coding.format));
    });
  }
}

TEST_P(CoordinatorCodedTest, ProcessSetsCodeForThemselves) {
  if (size() < 3) {
    GTEST_SKIP() << "needs three ranks";
  }
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const std::uint32_t set = coordinator.add_process_set({1, 2});
    if (rank != 0) {
      CodedRank mine = given(rank, 500);
      Request request = coded_request("both", 500, kInt8);
      request.process_set = set;
      finish(coordinator, submit_in_place(coordinator, request, mine));
      const auto wanted = summed({given(1, 500), given(2, 500)}, kInt8);
      const CodedRank& own = wanted[static_cast<std::size_t>(rank - 1)];
      expect_equal_bits(own.values, mine.values, "sum");
      expect_equal_bits(own.residual, mine.residual, "residual");
    }
    coordinator.remove_process_set(set);
  });
}

TEST_P(CoordinatorCodedTest, RanksThatDisagreeAreToldBothCodes) {
  const std::pair<Coding, std::string> others[] = {
      {{WireFormat::kInt8Blocks, 512}, "int8_blocks 512"},
      {{WireFormat::kInt8Blocks, 128 + Coding::kStochastic}, "int8_blocks 65664"},
      {{WireFormat::kInt4Blocks, 128}, "int4_blocks 128"},
      {{WireFormat::kLargest, 128}, "largest 128"},
      {{WireFormat::kTensor, 0}, "tensor"},
  };
  with_coordinators(world_, [&](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    for (const auto& [coding, name] : others) {
      CodedRank mine = given(rank, 500);
      const Request request = coded_request("x", 500, rank == 1 ? coding : kInt8);
      const Handle handle = submit_in_place(coordinator, request, mine);
      const Status status = status_of([&] { coordinator.wait(handle); });
      coordinator.release(handle);
      EXPECT_EQ(Code::kMismatch, status.code());
      EXPECT_NE(std::string::npos,
                status.message().find("rank 0 submitted wire format int8_blocks 128, rank 1 "
                                      "submitted wire format " +
                                      name + ";"))
          << status.message();
      expect_equal_bits(given(rank, 500).residual, mine.residual, "nothing was sent");
    }
    EXPECT_EQ(sum(coordinator, "afterwards", 1), static_cast<float>(size()));
  });
}

TEST(CoordinatorCoded, RefusedWhereItIsSubmitted) {
  CoordinatorWorld world;
  world.size = 1;
  with_coordinators(world, [](int, RankParts& parts) {
    float value = 1;
    const auto expect_refusal = [&](const Request& request, const std::string& part) {
      const Status status = status_of([&] { submit(*parts.coordinator, request, &value, &value); });
      EXPECT_EQ(Code::kInvalidArgument, status.code());
      EXPECT_NE(std::string::npos, status.message().find(part))
          << "'" << part << "' is not in: " << status.message();
    };
    for (const Coding& coding : kCodings) {
      const std::string name = std::string("wire format ") + name_of(coding.format);
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        Request request = coded_request("x", 1, coding);
        request.op = op;
        expect_refusal(request, name + " with op=" + name_of(op) + " (expected Sum or Average)");
      }
      Request request = coded_request("x", 1, coding);
      request.op = ReduceOp::kAdasum;
      expect_refusal(request, name + " (expected an all-reduce, and not Adasum)");
      request.op = ReduceOp::kSum;
      request.kind = OpKind::kReducescatter;
      expect_refusal(request, name + " (expected an all-reduce");
      request.kind = OpKind::kAllreduce;
      request.dtype = DataType::kFloat64;
      expect_refusal(request, name + " for float64 (expected float32)");
      request.dtype = DataType::kFloat32;
      request.more = {{DataType::kInt32, {1}}};
      expect_refusal(request, name + " for int32 (expected float32)");
    }
    expect_refusal(coded_request("x", 1, {WireFormat::kInt8Blocks, 200}), "200");
    expect_refusal(coded_request("x", 1, {WireFormat::kInt4Blocks, 0}), "int4_blocks: ");
    expect_refusal(coded_request("x", 1, {WireFormat::kLargest, 0}), "density of 0 millionths");
    expect_refusal(coded_request("x", 1, {WireFormat::kRandom, 0}), "random: density of 0 mill");
    expect_refusal(coded_request("x", 1, {WireFormat::kLargest, 200'000}),
                   "density of 200000 millionths (expected 1 to 100000)");
    for (const WireFormat plain : {WireFormat::kTensor, WireFormat::kBFloat16}) {
      expect_refusal(coded_request("x", 1, {plain, 7}), "number 7 (expected none)");
    }
  });
}

/// Nothing travels: in a job of one rank, and in a process set of one rank of several.
TEST(OneRankCodedTest, TensorsAndResidualsStayAsTheyAre) {
  for (const int size : {1, 2}) {
    CoordinatorWorld world;
    world.size = size;
    world.transport = Transport::kTcp;
    with_coordinators(world, [&](int rank, RankParts& parts) {
      Coordinator& coordinator = *parts.coordinator;
      const std::uint32_t set = size == 1 ? 0 : coordinator.add_process_set({1});
      for (const Coding& coding : kCodings) {
        if (rank == size - 1) {
          CodedRank mine = given(rank, 5000);
          Request request = coded_request("x", 5000, coding);
          request.process_set = set;
          finish(coordinator, submit_in_place(coordinator, request, mine));
          expect_equal_bits(given(rank, 5000).values, mine.values, name_of(coding.format));
          expect_equal_bits(given(rank, 5000).residual, mine.residual, name_of(coding.format));
        }
      }
      coordinator.remove_process_set(set);
    });
  }
}

/// Nothing travels there.
TEST(SharedMemoryCodedTest, TensorsAndResidualsStayAsTheyAre) {
  CoordinatorWorld world;
  world.transport = Transport::kTcp;
  world.make_engine = [](int, EngineContext* context, const std::shared_ptr<FakeHub>&) {
    return std::make_unique<ShmEngine>(*context);
  };
  with_coordinators(world, [&](int rank, RankParts& parts) {
    for (const Coding& coding : kCodings) {
      CodedRank mine = given(rank, 5000);
      finish(*parts.coordinator,
             submit_in_place(*parts.coordinator, coded_request("x", 5000, coding), mine));
      Floats total = given(0, 5000).values;
      const Floats other = given(1, 5000).values;
      for (std::size_t i = 0; i < total.size(); ++i) {
        total[i] += other[i];
      }
      expect_equal_bits(total, mine.values, name_of(coding.format));
      expect_equal_bits(given(rank, 5000).residual, mine.residual, name_of(coding.format));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorCodedTest,
                         testing::Values(WorldSetting{2, Transport::kInProcess},
                                         WorldSetting{2, Transport::kTcp},
                                         WorldSetting{3, Transport::kTcp}),
                         setting_name);

}  // namespace
}  // namespace aiacc
