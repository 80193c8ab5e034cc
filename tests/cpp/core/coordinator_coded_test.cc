// All-reduces of tensors that travel coded, wherever they are.

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/engines/shm/shm_engine.h"
#include "tests/cpp/core/execution/coded_steps.h"
#include "tests/cpp/engines/coded_sums.h"
#include "tests/cpp/engines/engine_checks.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {
namespace {

constexpr Coding kInt8{WireFormat::kInt8Blocks, 128};
constexpr Coding kLargest{WireFormat::kLargest, 100'000 + Coding::kExact};
constexpr Coding kCodings[] = {
    kInt8, {WireFormat::kInt4Blocks, 256}, {WireFormat::kFloat8Blocks, 256}, kLargest};

struct CodedBed {
  Place place;
  WorldSetting world;
};

/// "StagedTcp3"
std::string name_of_bed(const testing::TestParamInfo<CodedBed>& test) {
  static const char* const places[] = {"Host", "Staged", "Nccl"};
  return places[static_cast<int>(test.param.place)] + setting_name({test.param.world, test.index});
}

class CodedTest : public testing::TestWithParam<CodedBed> {
 protected:
  int size() const { return GetParam().world.size; }

  /// `body(rank, coordinator, submitter)` on every rank.
  template <class Body>
  void with_ranks(Place place, Body body) {
    with_submitters(gpus_, place, world_, lanes_, [&](int rank, RankParts& parts, Submitter& own) {
      body(rank, *parts.coordinator, own);
    });
  }
  template <class Body>
  void with_ranks(Body body) {
    with_ranks(GetParam().place, body);
  }

  NcclWorld gpus_{GetParam().world.size};
  CoordinatorWorld world_{GetParam().world.size, GetParam().world.transport};
  int lanes_ = 2;
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

std::vector<CodedRank> all_given(int first, int size, std::size_t count, std::uint32_t step = 0) {
  std::vector<CodedRank> all;
  for (int rank = first; rank < size; ++rank) {
    all.push_back(given(rank, count, step));
  }
  return all;
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

/// As it is without a code.
Floats plain_sum(const std::vector<CodedRank>& ranks) {
  Floats total(ranks.front().values.size(), 0.0F);
  for (const CodedRank& rank : ranks) {
    for (std::size_t i = 0; i < total.size(); ++i) {
      total[i] += rank.values[i];
    }
  }
  return total;
}

Handle submit_in_place(Coordinator& coordinator,
                       Submitter& submitter,
                       const Request& request,
                       CodedRank& mine) {
  auto operation = submitter.operation(request, mine.values.data(), mine.values.data());
  operation->buffers[0].residual = mine.residual.data();
  return coordinator.submit(std::move(operation));
}

void expect_result(const CodedRank& wanted, const CodedRank& got, const Coding& coding) {
  expect_equal_bits(wanted.values, got.values, std::string("sum of ") + name_of(coding.format));
  expect_equal_bits(
      wanted.residual, got.residual, std::string("rest of ") + name_of(coding.format));
}

/// One of them has no residual, and one is empty; input and output are the same or not.
TEST_P(CodedTest, AGroupIsCodedAsOneTensorWithItsFactors) {
  const std::vector<std::size_t> counts = {300, 5, 0, 1000};
  for (const Coding& coding : kCodings) {
    std::vector<CodedRank> ranks = all_given(0, size(), 1305);
    for (CodedRank& rank : ranks) {
      for (float& value : rank.values) {
        value *= 0.5F;
      }
      std::fill_n(rank.residual.begin() + 300, 5, 0.0F);
    }
    const std::vector<CodedRank> expected = summed(ranks, coding);
    with_ranks([&](int rank, Coordinator& coordinator, Submitter& submitter) {
      CodedRank mine = given(rank, 1305);
      Floats& kept = mine.residual;
      Floats results(1000);
      Request request = coded_request("g", counts[0], coding);
      request.prescale = 0.5;
      request.postscale = 4;
      CodedTensors tensors;
      std::size_t at = 0;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        if (i > 0) {
          request.tensors.push_back({DataType::kFloat32, {static_cast<std::int64_t>(counts[i])}});
        }
        float* input = mine.values.data() + at;
        tensors.push_back(
            {input, i == 3 ? results.data() : input, i == 1 ? nullptr : kept.data() + at});
        at += counts[i];
      }
      auto operation = submitter.operation(request, nullptr, nullptr);
      assign_coded(*operation, operation->request, tensors);
      const auto before = coordinator.stats();
      submitter.finish(coordinator.submit(std::move(operation)));
      EXPECT_EQ(1U, coordinator.stats().units - before.units);
      const CodedRank& wanted = expected[static_cast<std::size_t>(rank)];
      EXPECT_EQ(given(rank, 1305).values[400], mine.values[400]) << "the input of another output";
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

TEST_P(CodedTest, WhatIsLostOfATensorDoesNotDependOnOthers) {
  with_ranks([&](int rank, Coordinator& coordinator, Submitter& submitter) {
    const auto before = coordinator.stats();
    std::vector<CodedRank> mine;
    std::vector<Handle> handles;
    for (std::uint32_t i = 0; i < 3; ++i) {
      mine.push_back(given(rank, 200, i));
    }
    for (std::uint32_t i = 0; i < 3; ++i) {
      const Request request = coded_request("t" + std::to_string(i), 200, kLargest);
      handles.push_back(submit_in_place(coordinator, submitter, request, mine[i]));
    }
    for (std::uint32_t i = 0; i < 3; ++i) {
      submitter.finish(handles[i]);
      const auto wanted = summed(all_given(0, size(), 200, i), kLargest);
      expect_result(wanted[static_cast<std::size_t>(rank)], mine[i], kLargest);
    }
    EXPECT_EQ(3U, coordinator.stats().units - before.units);
  });
}

/// Units of 4096 bytes on the wire, times the stretch of 16, in parts of their own residuals.
TEST_P(CodedTest, ALargeTensorIsCutWithItsResidual) {
  constexpr std::size_t kCount = 200'003;
  for (const Coding& coding : {kInt8, kLargest}) {
    const std::vector<CodedRank> before = all_given(0, size(), kCount);
    std::vector<CodedRank> ranks = before;
    with_ranks([&](int rank, Coordinator& coordinator, Submitter& submitter) {
      const auto stats = coordinator.stats();
      submitter.finish(submit_in_place(coordinator,
                                       submitter,
                                       coded_request("x", kCount, coding),
                                       ranks[static_cast<std::size_t>(rank)]));
      EXPECT_LT(1U, coordinator.stats().units - stats.units);
      EXPECT_EQ(kCount, coordinator.stats().data_bytes - stats.data_bytes);
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
TEST_P(CodedTest, WhileARankHasJoinedNothingIsCoded) {
  for (const Coding& coding : kCodings) {
    const Floats total = plain_sum(all_given(1, size(), 700));
    const std::vector<CodedRank> expected = summed(all_given(0, size(), 700), coding);
    with_ranks([&](int rank, Coordinator& coordinator, Submitter& submitter) {
      const Request request = coded_request("x", 700, coding);
      for (int step = 0; rank != 0 && step < 3; ++step) {  // as a request, then by a bit
        CodedRank mine = given(rank, 700);
        submitter.finish(submit_in_place(coordinator, submitter, request, mine));
        expect_result({total, given(rank, 700).residual}, mine, coding);
      }
      join(coordinator);
      CodedRank mine = given(rank, 700);
      submitter.finish(submit_in_place(coordinator, submitter, request, mine));
      expect_result(expected[static_cast<std::size_t>(rank)], mine, coding);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Beds,
                         CodedTest,
                         testing::Values(CodedBed{Place::kHost, {2, Transport::kFake}},
                                         CodedBed{Place::kHost, {2, Transport::kTcp}},
                                         CodedBed{Place::kHost, {3, Transport::kTcp}},
                                         CodedBed{Place::kStaged, {2, Transport::kTcp}},
                                         CodedBed{Place::kNccl, {2, Transport::kFake}},
                                         CodedBed{Place::kNccl, {3, Transport::kFake}}),
                         name_of_bed);

/// Nothing travels in shared memory, in a job of one rank, and in a set of one rank of several:
/// tensors and residuals keep their bits, in every format.
TEST(CodedAndNarrowTensors, StayAsTheyAreWhereNothingTravels) {
  std::vector<Coding> codings(std::begin(kCodings), std::end(kCodings));
  codings.push_back({WireFormat::kFloat16, 0});
  codings.push_back({WireFormat::kBFloat16, 0});
  for (const auto& [size, shares] : {std::pair(1, false), {2, false}, {2, true}}) {
    CoordinatorWorld world(size, Transport::kTcp);
    if (shares) {
      world.make_engine = [](int, EngineContext* context, const std::shared_ptr<FakeHub>&) {
        return std::make_unique<ShmEngine>(*context);
      };
    }
    with_coordinators(world, [&, alone = !shares, last = size - 1](int rank, RankParts& parts) {
      Coordinator& coordinator = *parts.coordinator;
      const std::uint32_t set = alone && last > 0 ? coordinator.add_process_set({last}) : 0;
      const auto reduced = [&](std::size_t count, const Coding& coding) {
        CodedRank mine{Floats(count), given(rank, count).residual};
        for (std::size_t i = 0; i < count; ++i) {
          mine.values[i] = std::sin(static_cast<float>(i)) * static_cast<float>(rank + 1) * 1e5F;
        }
        Request request = coded_request("x", count, coding);
        request.process_set = set;
        auto operation = coordinator.acquire();
        const bool has_residual = is_coded(coding.format);
        assign_coded(*operation,
                     request,
                     {{mine.values.data(),
                       mine.values.data(),
                       has_residual ? mine.residual.data() : nullptr}});
        const std::uint64_t before = coordinator.stats().data_bytes;
        finish(coordinator, coordinator.submit(std::move(operation)));
        EXPECT_EQ(coordinator.stats().data_bytes - before, count * sizeof(float));
        return mine;
      };
      for (const std::size_t count : {std::size_t{7}, std::size_t{5000}, std::size_t{300'001}}) {
        if (alone && rank != last) {
          continue;
        }
        const CodedRank exact = reduced(count, {WireFormat::kTensor, 0});
        for (const Coding& coding : codings) {
          expect_result(exact, reduced(count, coding), coding);
        }
      }
      coordinator.remove_process_set(set);
    });
  }
}

/// The same steps on GPUs and in host memory.
class CodedOnGpusTest : public CodedTest {
 protected:
  /// `coded_steps` of every rank; `of_some`: in a process set of all but the first, if there are
  /// so many.
  std::vector<CodedResults> results(Place place,
                                    const Coding& coding,
                                    bool feedback,
                                    bool of_some) {
    std::vector<CodedResults> results(static_cast<std::size_t>(size()));
    with_ranks(place, [&](int rank, Coordinator& coordinator, Submitter& submitter) {
      std::vector<int> some;
      for (int member = 1; member < size(); ++member) {
        some.push_back(member);
      }
      const std::uint32_t set = of_some && size() > 1 ? coordinator.add_process_set(some) : 0;
      if (set == 0 || rank > 0) {
        results[static_cast<std::size_t>(rank)] = coded_steps(
            rank, coding, feedback, set, [&](const Request& request, const CodedTensors& tensors) {
              auto operation = submitter.operation(request, nullptr, nullptr);
              assign_coded(*operation, operation->request, tensors);
              submitter.finish(coordinator.submit(std::move(operation)));
            });
      }
      barrier(coordinator, "all have");
    });
    return results;
  }
  void expect_bits_of_host(const Coding& coding, bool of_some = false) {
    for (const bool feedback : {false, true}) {
      EXPECT_TRUE(results(Place::kHost, coding, feedback, of_some) ==
                  results(GetParam().place, coding, feedback, of_some))
          << name_of(coding.format) << " " << coding.detail << (feedback ? ", feedback" : "");
    }
  }
};

/// With what they leave to chance, and what is left in residuals.
TEST_P(CodedOnGpusTest, EveryCodeHasTheBitsOfHostMemory) {
  for (const Coding& coding : block_codings()) {
    expect_bits_of_host(coding);
  }
  for (const Coding& coding : largest_codings()) {
    expect_bits_of_host(coding);
  }
  if (GetParam().place == Place::kStaged) {
    expect_bits_of_host({WireFormat::kLargest, 50'000 + Coding::kReference});
    expect_bits_of_host({WireFormat::kRandom, 50'000});
  }
}

TEST_P(CodedOnGpusTest, ProcessSetsHaveTheBitsOfHostMemory) {
  expect_bits_of_host({WireFormat::kInt8Blocks, 128 + Coding::kStochastic}, true);
  expect_bits_of_host({WireFormat::kLargest, 10'000}, true);
}

class CodedOverNcclTest : public CodedOnGpusTest {};

/// Their operations are issued together, those of the lanes of a round.
TEST_P(CodedOverNcclTest, AnyNumberOfLanes) {
  for (const int lanes : {1, 4}) {
    lanes_ = world_.lanes = lanes;
    world_.options.parameters.lanes = static_cast<std::uint32_t>(lanes);
    expect_bits_of_host({WireFormat::kInt4Blocks, 256});
    expect_bits_of_host({WireFormat::kLargest, 10'000});
  }
}

/// With inputs that are looked at, and beside units that are not coded.
TEST_P(CodedOverNcclTest, InputsAreLookedAt) {
  world_.options.check_finite = FiniteMode::kRaise;
  expect_bits_of_host({WireFormat::kInt8Blocks, 256});
  expect_bits_of_host({WireFormat::kLargest, 10'000});
}

const auto over_nccl = testing::Values(CodedBed{Place::kNccl, {1, Transport::kTcp}},
                                       CodedBed{Place::kNccl, {2, Transport::kTcp}},
                                       CodedBed{Place::kNccl, {3, Transport::kTcp}});
INSTANTIATE_TEST_SUITE_P(Nccl, CodedOverNcclTest, over_nccl, name_of_bed);
INSTANTIATE_TEST_SUITE_P(Nccl, CodedOnGpusTest, over_nccl, name_of_bed);
INSTANTIATE_TEST_SUITE_P(Staged,
                         CodedOnGpusTest,
                         testing::Values(CodedBed{Place::kStaged, {1, Transport::kFake}},
                                         CodedBed{Place::kStaged, {2, Transport::kFake}},
                                         CodedBed{Place::kStaged, {3, Transport::kTcp}}),
                         name_of_bed);

}  // namespace
}  // namespace aiacc
