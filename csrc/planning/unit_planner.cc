#include "csrc/planning/unit_planner.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

void add_unit(const Slice& slice, UnitPlan& plan) {
  if (plan.count == plan.units.size()) {
    plan.units.emplace_back();
  }
  PlannedUnit& unit = plan.units[plan.count++];
  unit.bytes = slice.bytes;
  unit.slices.clear();
  unit.slices.push_back(slice);
}

/// Equal parts of at most `unit_bytes`, each starting on the alignment and on a whole element.
void split(std::uint32_t index, const PlanItem& item, std::uint64_t unit_bytes, UnitPlan& plan) {
  const std::uint64_t grain =
      std::lcm(std::uint64_t{kSliceAlignment}, std::uint64_t{item.element_bytes});
  std::uint64_t part = item.bytes;
  if (item.splittable && item.bytes > unit_bytes) {
    // Rounding a part up to the grain must not take it beyond the limit.
    const std::uint64_t limit = std::max(unit_bytes / grain * grain, grain);
    const std::uint64_t parts = (item.bytes + limit - 1) / limit;
    part = ((item.bytes + parts - 1) / parts + grain - 1) / grain * grain;
  }
  for (std::uint64_t offset = 0; offset < item.bytes; offset += part) {
    const std::uint64_t bytes = std::min(part, item.bytes - offset);
    add_unit({index, offset, bytes}, plan);
  }
}

}  // namespace

Parameters next_parameters(const Parameters& current, const std::vector<Parameters>& proposals) {
  for (const Parameters& proposal : proposals) {
    if (proposal.epoch == current.epoch + 1) {
      return proposal;
    }
  }
  return current;
}

void plan_units(const std::vector<PlanItem>& items,
                const Parameters& parameters,
                std::uint64_t first_seq,
                std::uint32_t express_lane,
                UnitPlan& plan) {
  if (parameters.unit_bytes == 0 || parameters.lanes == 0) {
    throw Error(Code::kInvalidArgument,
                "[planning] unit_bytes " + std::to_string(parameters.unit_bytes) + ", lanes " +
                    std::to_string(parameters.lanes) + " (expected both > 0)");
  }
  plan.count = 0;
  plan.open.clear();
  for (std::uint32_t index = 0; index < items.size(); ++index) {
    const PlanItem& item = items[index];
    if (item.bytes == 0) {
      continue;
    }
    if (!item.packable || item.bytes >= (parameters.unit_bytes + 1) / 2) {
      split(index, item, parameters.unit_bytes, plan);
      continue;
    }
    if (plan.open.size() <= item.pack_class) {
      plan.open.resize(item.pack_class + std::size_t{1}, kNone);
    }
    std::size_t& open = plan.open[item.pack_class];
    if (open != kNone && plan.units[open].bytes + item.bytes <= parameters.unit_bytes) {
      PlannedUnit& unit = plan.units[open];
      unit.slices.push_back({index, 0, item.bytes});
      unit.bytes += item.bytes;
      continue;
    }
    open = plan.count;
    add_unit({index, 0, item.bytes}, plan);
  }
  for (std::size_t i = 0; i < plan.count; ++i) {
    PlannedUnit& unit = plan.units[i];
    unit.seq = first_seq++;
    unit.lane = unit.bytes <= kExpressBytes
                    ? express_lane
                    : static_cast<std::uint32_t>(unit.seq % parameters.lanes);
  }
}

}  // namespace aiacc
