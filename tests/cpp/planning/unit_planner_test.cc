#include "csrc/planning/unit_planner.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/planning/unit_size.h"

namespace aiacc {
namespace {

constexpr std::uint32_t kExpress = 99;

struct Case {
  std::vector<PlannedTensor> tensors;
  Parameters parameters;
  std::uint64_t first_seq = 0;
};

/// Tensors as models have them: many small, some large, a few empty, of several classes.
Case random_case(std::uint32_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  Case result;
  static constexpr std::uint64_t kUnits[] = {1, 256, 300, 1000, 4096, 65536, 100000, 2 << 20};
  result.parameters.unit_bytes = kUnits[below(std::size(kUnits))];
  result.parameters.gpu_unit_bytes = kUnits[below(std::size(kUnits))];
  result.parameters.lanes = static_cast<std::uint32_t>(1 + below(5));
  result.first_seq = below(1000);
  const std::size_t count = below(60);
  for (std::size_t i = 0; i < count; ++i) {
    static constexpr std::uint32_t kElements[] = {1, 2, 4, 8};
    PlannedTensor tensor;
    tensor.pack_class = static_cast<std::uint32_t>(below(4));
    tensor.element_bytes = kElements[tensor.pack_class];
    const std::uint64_t scale = below(4) == 0 ? 300000 : 300;
    tensor.bytes = below(8) == 0 ? 0 : tensor.element_bytes * below(scale);
    tensor.packable = below(6) != 0;
    tensor.on_gpu = tensor.pack_class == 3;
    tensor.narrowing = tensor.pack_class == 1 ? 2 : 1;
    tensor.thinning = tensor.pack_class == 2 ? 3 : 1;
    tensor.stretch = tensor.pack_class == 2 ? 4 : 1;
    tensor.splittable = tensor.packable || below(2) == 0;
    result.tensors.push_back(tensor);
  }
  return result;
}

std::uint64_t unit_bytes_of(const Case& c, const PlannedTensor& tensor) {
  const std::uint64_t bytes = tensor.on_gpu ? c.parameters.gpu_unit_bytes : c.parameters.unit_bytes;
  return bytes * tensor.thinning * tensor.stretch;
}

/// As the planner counts them.
std::uint64_t planned_bytes(const Case& c, const PlannedUnit& unit) {
  return unit.bytes / c.tensors[unit.slices.front().tensor].narrowing;
}

std::vector<PlannedUnit> planned(const std::vector<PlannedTensor>& tensors,
                                 const Parameters& parameters,
                                 std::uint64_t first_seq,
                                 std::uint32_t express_lane) {
  UnitPlan plan;
  LaneLoads loads;
  plan_units(tensors, parameters, first_seq, express_lane, loads, plan);
  return {plan.begin(), plan.end()};
}

void expect_covered_once(const Case& c, const std::vector<PlannedUnit>& units) {
  std::vector<std::vector<Slice>> slices(c.tensors.size());
  for (const PlannedUnit& unit : units) {
    std::uint64_t bytes = 0;
    ASSERT_FALSE(unit.slices.empty());
    const PlannedTensor& first = c.tensors[unit.slices.front().tensor];
    EXPECT_EQ(0U, unit.bytes % first.narrowing);
    EXPECT_EQ((planned_bytes(c, unit) + first.thinning - 1) / first.thinning, unit.wire_bytes);
    for (const Slice& slice : unit.slices) {
      ASSERT_LT(slice.tensor, c.tensors.size());
      ASSERT_GT(slice.bytes, 0U);
      slices[slice.tensor].push_back(slice);
      bytes += slice.bytes;
    }
    EXPECT_EQ(unit.bytes, bytes);
  }
  for (std::size_t i = 0; i < c.tensors.size(); ++i) {
    std::uint64_t at = 0;
    for (const Slice& slice : slices[i]) {
      EXPECT_EQ(slice.offset, at) << "tensor " << i;
      at += slice.bytes;
    }
    EXPECT_EQ(at, c.tensors[i].bytes * c.tensors[i].narrowing) << "tensor " << i;
  }
}

/// Of one class, each cut at elements and alignments, and no larger than asked for: but nothing can
/// be cut finer than the alignment.
void expect_cut_well(const Case& c, const std::vector<PlannedUnit>& units) {
  for (const PlannedUnit& unit : units) {
    const PlannedTensor& first = c.tensors[unit.slices.front().tensor];
    if (first.splittable) {
      EXPECT_LE(planned_bytes(c, unit),
                std::max<std::uint64_t>(unit_bytes_of(c, first), kSliceAlignment));
    }
    for (const Slice& slice : unit.slices) {
      const PlannedTensor& tensor = c.tensors[slice.tensor];
      EXPECT_EQ(tensor.pack_class, first.pack_class);
      EXPECT_TRUE(unit.slices.size() == 1 || tensor.packable);
      EXPECT_EQ(slice.offset % kSliceAlignment, 0U);
      EXPECT_EQ(slice.offset % tensor.element_bytes, 0U);
      EXPECT_EQ(slice.bytes % tensor.element_bytes, 0U);
      if (!tensor.splittable) {
        EXPECT_EQ(slice.bytes, tensor.bytes * tensor.narrowing);
      }
    }
  }
}

/// Numbered in order; small ones in the express lane; the others as the lanes' loads want it.
void expect_lanes(const Case& c, const std::vector<PlannedUnit>& units) {
  std::uint64_t seq = c.first_seq;
  LaneLoads loads;
  for (const PlannedUnit& unit : units) {
    EXPECT_EQ(unit.seq, seq);
    EXPECT_EQ(
        unit.lane,
        unit.wire_bytes <= kExpressBytes ? kExpress : loads.assign(unit.wire_bytes, c.parameters));
    ++seq;
  }
}

/// Parts of one tensor are equal within one alignment, and fill the lanes alike if they may: they
/// are no more than that takes, and none is made small for the sake of many lanes.
void expect_equal_parts(const Case& c, const std::vector<PlannedUnit>& units) {
  std::vector<std::vector<std::uint64_t>> parts(c.tensors.size());
  for (const PlannedUnit& unit : units) {
    for (const Slice& slice : unit.slices) {
      parts[slice.tensor].push_back(slice.bytes);
    }
  }
  for (std::size_t i = 0; i < c.tensors.size(); ++i) {
    const PlannedTensor& tensor = c.tensors[i];
    if (parts[i].size() < 2) {
      continue;
    }
    const auto [least, most] = std::minmax_element(parts[i].begin(), parts[i].end());
    EXPECT_LE(*most - *least, kSliceAlignment * tensor.narrowing) << "tensor " << i;
    const std::uint64_t lanes = c.parameters.lanes;
    const std::uint64_t unit_bytes = unit_bytes_of(c, tensor);
    const std::uint64_t units_of_tensor = (tensor.bytes + unit_bytes - 1) / unit_bytes;
    if (tensor.bytes >= (units_of_tensor + lanes) * kMinPartBytes) {
      EXPECT_EQ(0U, parts[i].size() % lanes) << "tensor " << i;
    }
    const std::uint64_t most_bytes =
        std::max<std::uint64_t>(unit_bytes / kSliceAlignment, 1) * kSliceAlignment;
    const std::uint64_t needed = (tensor.bytes + most_bytes - 1) / most_bytes;
    EXPECT_LT(parts[i].size(), needed + lanes) << "tensor " << i;
    EXPECT_TRUE(parts[i].size() == needed || *most >= kMinPartBytes * tensor.narrowing)
        << "tensor " << i;
  }
}

/// Small tensors of a class come in order and do not leave units needlessly empty: two
/// consecutive shared units of a class could not have been one.
void expect_packed(const Case& c, const std::vector<PlannedUnit>& units) {
  std::map<std::uint32_t, const PlannedUnit*> last;
  for (const PlannedUnit& unit : units) {
    const PlannedTensor& first = c.tensors[unit.slices.front().tensor];
    if (!first.packable || first.bytes >= (unit_bytes_of(c, first) + 1) / 2) {
      EXPECT_EQ(unit.slices.size(), 1U) << "a large tensor shares a unit";
      continue;
    }
    const auto found = last.find(first.pack_class);
    if (found != last.end()) {
      EXPECT_GT(planned_bytes(c, *found->second) + first.bytes, unit_bytes_of(c, first));
    }
    last[first.pack_class] = &unit;
  }
}

TEST(PlanUnits, HoldsItsPromisesOnRandomTensors) {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case c = random_case(seed);
    const auto units = planned(c.tensors, c.parameters, c.first_seq, kExpress);
    expect_covered_once(c, units);
    expect_cut_well(c, units);
    expect_lanes(c, units);
    expect_equal_parts(c, units);
    expect_packed(c, units);
    if (HasFailure()) {
      return;
    }
  }
}

TEST(PlanUnits, ALargeTensorUsesAllLanesEvenly) {
  for (std::uint32_t lanes = 1; lanes <= kMaxLanes; ++lanes) {
    for (const std::uint64_t unit_bytes : {256 << 10, 1 << 20, 3 << 20, 1 << 30}) {
      // 64 MiB, and a tensor of no round size.
      for (const std::uint64_t bytes : {std::uint64_t{64} << 20, std::uint64_t{40000004}}) {
        std::vector<std::uint64_t> by_lane(lanes, 0);
        std::vector<std::uint64_t> parts(lanes, 0);
        for (const PlannedUnit& unit : planned({{bytes, 4}}, {0, unit_bytes, lanes}, 7, kExpress)) {
          by_lane.at(unit.lane) += unit.bytes;
          ++parts.at(unit.lane);
        }
        if (bytes <= unit_bytes) {
          EXPECT_EQ(1U, parts[0]);  // One unit is what was asked for.
          continue;
        }
        const auto [least, most] = std::minmax_element(by_lane.begin(), by_lane.end());
        EXPECT_LE(*most - *least, parts[0] * kSliceAlignment)
            << bytes << " bytes, units of " << unit_bytes << ", " << lanes << " lanes";
        EXPECT_EQ(parts, std::vector<std::uint64_t>(lanes, parts[0]));
      }
    }
  }
}

/// Whatever the density: what selects elements counts them in 32 bits.
TEST(PlanUnits, ThinTensorsBeyond31BitsAreCut) {
  PlannedTensor thin{std::uint64_t{5} << 31, 4, 0};
  thin.thinning = 125'000;
  thin.stretch = 16;
  std::uint64_t end = 0;
  for (const PlannedUnit& unit : planned({thin}, {0, 8 << 20, 1}, 0, kExpress)) {
    EXPECT_GE(std::uint64_t{1} << 31, unit.bytes);
    EXPECT_EQ(end, unit.slices.front().offset);
    end += unit.bytes;
  }
  EXPECT_EQ(thin.bytes, end);
}

/// There a lane's buffers are as large as a unit.
TEST(PlanUnits, ThinTensorsOnAGpuAreCutAt128Mebibytes) {
  PlannedTensor thin{std::uint64_t{5} << 27, 4, 0};
  thin.thinning = 100;
  thin.stretch = 16;
  thin.on_gpu = true;
  Parameters parameters;
  parameters.lanes = 1;
  EXPECT_EQ(5U, planned({thin}, parameters, 0, kExpress).size());
  parameters.gpu_unit_bytes = std::uint64_t{1} << 30;
  EXPECT_EQ(1U, planned({thin}, parameters, 0, kExpress).size()) << "unless all may be larger";
}

TEST(PlanUnits, RefusesNoUnitAndNoLane) {
  for (const Parameters& wrong : {Parameters{0, 0, 1}, {0, 1, 0}, {0, 1, kMaxLanes + 1}}) {
    EXPECT_THROW(planned({}, wrong, 0, 0), Error);
  }
}

TEST(UnitSize, GrowsWhereHostsAreKnownToBeFarFromEachOther) {
  EXPECT_EQ(kNearUnitBytes, unit_bytes_for(0));
  EXPECT_EQ(kNearUnitBytes, unit_bytes_for(20e-6));
  EXPECT_EQ(kNearUnitBytes, unit_bytes_for(0.99 * kFarRoundTripS));
  EXPECT_EQ(kFarUnitBytes, unit_bytes_for(kFarRoundTripS));
  EXPECT_EQ(kFarUnitBytes, unit_bytes_for(0.2));
}

}  // namespace
}  // namespace aiacc
