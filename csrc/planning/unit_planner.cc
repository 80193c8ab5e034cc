#include "csrc/planning/unit_planner.h"

#include <algorithm>
#include <limits>
#include <numeric>

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

/// What codes the elements of a unit counts them in 32 bits.
constexpr std::uint64_t kMostThinBytes = std::uint64_t{1} << 31;
/// A lane's buffers on a GPU are as large.
constexpr std::uint64_t kMostThinBytesOnGpu = std::uint64_t{1} << 27;

std::uint64_t unit_bytes_of(const PlannedTensor& tensor, const Parameters& parameters) {
  const std::uint64_t bytes = tensor.on_gpu ? parameters.gpu_unit_bytes : parameters.unit_bytes;
  const std::uint64_t times = std::uint64_t{tensor.thinning} * tensor.stretch;
  const std::uint64_t most = tensor.on_gpu ? std::max(bytes, kMostThinBytesOnGpu) : kMostThinBytes;
  return times == 1 ? bytes : std::min(bytes * times, most);
}

std::uint64_t divided_up(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }

/// How many parts a tensor of more than a unit is cut into, of at most `limit` bytes each.
std::uint64_t number_of_parts(std::uint64_t bytes, std::uint64_t limit, std::uint32_t lanes) {
  const std::uint64_t parts = divided_up(bytes, limit);
  const std::uint64_t even = divided_up(parts, lanes) * lanes;
  return bytes >= even * kMinPartBytes ? even : std::max(parts, bytes / kMinPartBytes);
}

/// Equal parts, each starting on the alignment and on a whole element.
void split(std::uint32_t index,
           const PlannedTensor& tensor,
           const Parameters& parameters,
           UnitPlan& plan) {
  const std::uint64_t unit_bytes = unit_bytes_of(tensor, parameters);
  if (!tensor.splittable || tensor.bytes <= unit_bytes) {
    return add_unit({index, 0, tensor.bytes}, plan);
  }
  const std::uint64_t grain =
      std::lcm(std::uint64_t{kSliceAlignment}, std::uint64_t{tensor.element_bytes});
  // Rounding a part up to the grain must not take it beyond the limit.
  const std::uint64_t limit = std::max(unit_bytes / grain, std::uint64_t{1}) * grain;
  const std::uint64_t grains = divided_up(tensor.bytes, grain);
  const std::uint64_t parts =
      number_of_parts(tensor.bytes, limit, std::min(parameters.lanes, tensor.most_lanes));
  // The last `longer` parts have one grain more than the others, and the tensor may end in a grain.
  const std::uint64_t longer = grains % parts;
  std::uint64_t offset = 0;
  for (std::uint64_t part = 0; part < parts; ++part) {
    const std::uint64_t whole = (grains / parts + (part >= parts - longer ? 1 : 0)) * grain;
    const std::uint64_t bytes = std::min(whole, tensor.bytes - offset);
    add_unit({index, offset, bytes}, plan);
    offset += bytes;
  }
}

}  // namespace

void plan_units(const std::vector<PlannedTensor>& tensors,
                const Parameters& parameters,
                std::uint64_t first_seq,
                std::uint32_t express_lane,
                LaneLoads& loads,
                UnitPlan& plan) {
  check_parameters(parameters);
  plan.count = 0;
  plan.open.clear();
  for (std::uint32_t index = 0; index < tensors.size(); ++index) {
    const PlannedTensor& tensor = tensors[index];
    if (tensor.bytes == 0) {
      continue;
    }
    const std::uint64_t unit_bytes = unit_bytes_of(tensor, parameters);
    if (!tensor.packable || tensor.bytes >= (unit_bytes + 1) / 2) {
      split(index, tensor, parameters, plan);
      continue;
    }
    if (plan.open.size() <= tensor.pack_class) {
      plan.open.resize(tensor.pack_class + std::size_t{1}, kNone);
    }
    std::size_t& open = plan.open[tensor.pack_class];
    if (open != kNone && plan.units[open].bytes + tensor.bytes <= unit_bytes) {
      PlannedUnit& unit = plan.units[open];
      unit.slices.push_back({index, 0, tensor.bytes});
      unit.bytes += tensor.bytes;
      continue;
    }
    open = plan.count;
    add_unit({index, 0, tensor.bytes}, plan);
  }
  for (std::size_t i = 0; i < plan.count; ++i) {
    PlannedUnit& unit = plan.units[i];
    const PlannedTensor& first = tensors[unit.slices.front().tensor];
    unit.seq = first_seq++;
    unit.wire_bytes = divided_up(unit.bytes, first.thinning);
    if (first.pinned) {
      unit.lane = loads.pin(unit.wire_bytes, parameters, express_lane);
    } else {
      unit.lane = unit.wire_bytes <= kExpressBytes
                      ? express_lane
                      : loads.assign(unit.wire_bytes, parameters, first.most_lanes);
    }
    unit.bytes *= first.narrowing;
    for (Slice& slice : unit.slices) {
      slice.offset *= first.narrowing;
      slice.bytes *= first.narrowing;
    }
  }
}

}  // namespace aiacc
