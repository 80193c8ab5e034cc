#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/planning/lane_assignment.h"
#include "csrc/planning/parameters.h"

namespace aiacc {

/// Buffers of at most this many bytes take the express lane: their cost is latency.
inline constexpr std::size_t kExpressBytes = 32 << 10;

/// No tensor is cut into smaller parts for the sake of using all lanes.
inline constexpr std::size_t kMinPartBytes = 2 * kExpressBytes;

/// Slices start at multiples of this many bytes of their tensor.
inline constexpr std::size_t kSliceAlignment = 256;

/// One agreed tensor as the planner sees it: in bytes that travel.
struct PlannedTensor {
  std::uint64_t bytes = 0;
  std::uint32_t element_bytes = 1;
  /// Tensors travel together only if their class is equal: it stands for kind, dtype, op, scales,
  /// root, wire format, device and process set. Classes are numbered from 0.
  std::uint32_t pack_class = 0;
  bool packable = true;    ///< may share a unit with others
  bool splittable = true;  ///< may be cut into several units
  bool pinned = false;     ///< goes into the one lane for units that must not overtake each other
  bool on_gpu = false;     ///< moved by an engine for GPUs: units of `gpu_unit_bytes`
  std::uint32_t narrowing = 1;  ///< bytes of the tensor for each that travels; equal in a class
  /// One of so many `bytes` travels in the end. It is equal in a class, as the next one is.
  std::uint32_t thinning = 1;
  /// How many times as much as of others makes a unit.
  std::uint32_t stretch = 1;
  /// Units of it, unless they are small, take so many lanes at most, always the same ones.
  std::uint32_t most_lanes = kMaxLanes;
};

/// A part of one tensor, in bytes of its memory.
struct Slice {
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// One engine operation.
struct PlannedUnit {
  std::uint64_t seq = 0;
  std::uint32_t lane = 0;        ///< as assigned, or `express_lane`
  std::uint64_t bytes = 0;       ///< of the slices
  std::uint64_t wire_bytes = 0;  ///< that travel for them
  std::vector<Slice> slices;
};

/// What plan_units makes. Use it again, and a plan no larger than an earlier one takes no memory.
struct UnitPlan {
  std::vector<PlannedUnit> units;  ///< the first `count` are the plan, the others are spare
  std::size_t count = 0;
  std::vector<std::size_t> open;  ///< scratch: the unit that each pack class fills at last

  const PlannedUnit* begin() const { return units.data(); }
  const PlannedUnit* end() const { return units.data() + count; }
};

/// Packs small tensors and splits large ones into units (AIACC-Training, ICDCS 2022, section on
/// packing and splitting of all-reduce units).
///
/// Sizes are those on the wire. Tensors that an engine for GPUs moves have units of their own size;
/// "unit_bytes" is that one for them. A tensor of at least half a unit travels alone: no copy is
/// needed. One of more than a unit is cut into parts of at most `parameters.unit_bytes` (but at
/// least one alignment) that are equal within one alignment. Their number is a multiple of the
/// lanes, so that one large tensor keeps all lanes equally busy, unless parts of less than
/// kMinPartBytes would come of it. Smaller tensors of one pack class share a unit in the order of
/// `tensors`. Numbers start at `first_seq`. Lanes are assigned by `loads` in the order of the
/// units, except that units of at most kExpressBytes use `express_lane`, which is also the number
/// of the other lanes, and that pinned ones share a lane, the same one for as long as the process
/// set lives. Pure: same arguments, same units and loads on every rank, with no further message.
/// Empty tensors get no unit. Throws Error(kInvalidArgument) if check_parameters does.
void plan_units(const std::vector<PlannedTensor>& tensors,
                const Parameters& parameters,
                std::uint64_t first_seq,
                std::uint32_t express_lane,
                LaneLoads& loads,
                UnitPlan& plan);

}  // namespace aiacc
