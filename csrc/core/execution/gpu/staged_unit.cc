#include "csrc/core/execution/gpu/staged_unit.h"

#include <cstring>
#include <memory>
#include <numeric>

#include "csrc/core/execution/finite_check.h"
#include "csrc/planning/staging_chunks.h"

namespace aiacc {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

}  // namespace

StagedUnit::Parts StagedUnit::parts_of(const std::vector<std::int64_t>& rows,
                                       std::uint64_t row_bytes) {
  Parts parts;
  for (const std::int64_t count : rows) {
    parts.begins.push_back(parts.total);
    parts.bytes.push_back(row_bytes * static_cast<std::uint64_t>(count));
    parts.total += parts.bytes.back();
  }
  return parts;
}

StagedUnit::StagedUnit(const Unit& unit)
    : unit_(unit), first_(unit.pieces.front()), kind_(first_.request().kind) {
  if (!gathers()) {
    return;
  }
  const std::uint64_t row_bytes = first_.spec().row_bytes();
  received_ = parts_of(first_.buffers().first_extents, row_bytes);
  sent_ = kind_ == OpKind::kAlltoall ? parts_of(first_.request().numbers, row_bytes)
                                     : parts_of({first_.spec().shape.front()}, row_bytes);
  steps_ = staging_chunks(unit.plan.bytes);
}

std::size_t StagedUnit::gathered_bytes() const { return received_.total; }

bool StagedUnit::is_root() const {
  return unit_.communicator->ranks[static_cast<std::size_t>(unit_.communicator->rank)] ==
         first_.request().root;
}

/// Whether residuals are staged, too.
bool StagedUnit::stages_residuals() const {
  return kind_ == OpKind::kAllreduce && is_coded(first_.request().wire) && feeds_back(unit_);
}

/// Where those begin that the tensors have.
std::size_t StagedUnit::residual_offset() const { return aligned(unit_.plan.bytes); }

/// What a step moves of every part.
std::vector<std::size_t> StagedUnit::sizes(const Parts& parts, std::size_t step) const {
  std::vector<std::size_t> bytes;
  bytes.reserve(parts.bytes.size());
  for (const std::size_t part : parts.bytes) {
    bytes.push_back(staging_chunk(part, steps_, step).bytes);
  }
  return bytes;
}

/// Where the results of a step begin; in place unless the operation cannot work so.
std::size_t StagedUnit::output_offset(std::size_t step) const {
  if (gathers()) {
    const auto sent = sizes(sent_, step);
    return aligned(std::accumulate(sent.begin(), sent.end(), std::size_t{0}));
  }
  return kind_ == OpKind::kReducescatter ? aligned(unit_.plan.bytes) : 0;
}

std::size_t StagedUnit::host_bytes(std::size_t step) const {
  std::size_t output = unit_.plan.bytes;
  if (gathers()) {
    const auto received = sizes(received_, step);
    output = std::accumulate(received.begin(), received.end(), std::size_t{0});
  } else if (stages_residuals()) {
    output += residual_offset();
  }
  return aligned(output_offset(step) + output);
}

void StagedUnit::add_pieces(const Parts& parts,
                            std::size_t step,
                            std::uintptr_t device,
                            std::size_t host_offset,
                            std::vector<Copy>& copies) const {
  for (std::size_t i = 0; i < parts.bytes.size(); ++i) {
    const ByteRange range = staging_chunk(parts.bytes[i], steps_, step);
    if (range.bytes > 0) {
      copies.push_back({device + parts.begins[i] + range.begin, host_offset, range.bytes});
    }
    host_offset += range.bytes;
  }
}

void StagedUnit::add_residuals(std::vector<Copy>& copies) const {
  std::size_t offset = residual_offset();
  for (std::size_t i = 0; i < unit_.pieces.size(); ++i) {
    const Slice& slice = unit_.plan.slices[i];
    const void* residual = unit_.pieces[i].buffers().residual;
    if (residual != nullptr) {
      copies.push_back({number(residual) + slice.offset, offset, slice.bytes});
    }
    offset += slice.bytes;
  }
}

std::vector<StagedUnit::Copy> StagedUnit::copies_in(std::size_t step) const {
  std::vector<Copy> copies;
  if (gathers()) {
    add_pieces(sent_, step, number(first_.buffers().input), 0, copies);
    return copies;
  }
  if (kind_ == OpKind::kBroadcast && !is_root()) {
    return copies;
  }
  std::size_t offset = 0;
  for (std::size_t i = 0; i < unit_.pieces.size(); ++i) {
    const Slice& slice = unit_.plan.slices[i];
    const void* input = unit_.pieces[i].buffers().input;
    if (input != nullptr) {
      copies.push_back({number(input) + slice.offset, offset, slice.bytes});
    }
    offset += slice.bytes;
  }
  if (stages_residuals()) {
    add_residuals(copies);
  }
  return copies;
}

std::vector<StagedUnit::Copy> StagedUnit::copies_out(std::size_t step,
                                                     std::uintptr_t gathered) const {
  std::vector<Copy> copies;
  if (gathers()) {
    add_pieces(received_, step, gathered, output_offset(step), copies);
    return copies;
  }
  if (kind_ == OpKind::kReducescatter) {
    const TensorSpec& spec = first_.spec();
    const std::size_t bytes =
        spec.row_bytes() *
        static_cast<std::uint64_t>(scattered_rows(
            spec.shape.front(), unit_.communicator->size(), unit_.communicator->rank));
    if (bytes > 0) {
      copies.push_back({number(first_.buffers().output), output_offset(step), bytes});
    }
    return copies;
  }
  std::size_t offset = 0;
  for (std::size_t i = 0; i < unit_.pieces.size(); ++i) {
    const Slice& slice = unit_.plan.slices[i];
    const TensorBuffers& buffers = unit_.pieces[i].buffers();
    const bool has_it = kind_ == OpKind::kBroadcast && is_root() && buffers.input == buffers.output;
    if (buffers.output != nullptr && !has_it) {
      copies.push_back({number(buffers.output) + slice.offset, offset, slice.bytes});
    }
    offset += slice.bytes;
  }
  if (stages_residuals()) {
    add_residuals(copies);
  }
  return copies;
}

void StagedUnit::run(std::size_t step, int lane, std::byte* host, PackBuffer& buffer) const {
  Engine& engine = *unit_.communicator->engine;
  std::byte* output = host + output_offset(step);
  if (unit_.finite != nullptr) {
    unit_.finite->inspect(unit_, host);
  }
  if (kind_ == OpKind::kAllgather) {
    engine.all_gather(lane, host, output, sizes(received_, step));
  } else if (kind_ == OpKind::kAlltoall) {
    engine.all_to_all(lane, host, output, sizes(sent_, step), sizes(received_, step));
  } else if (kind_ == OpKind::kReducescatter) {
    run_scattered(lane, host, buffer);
  } else {
    run_packed(lane, host, buffer);
  }
}

bool StagedUnit::fits_slots() const {
  return kind_ == OpKind::kAllreduce && first_.request().op != ReduceOp::kAdasum &&
         first_.request().wire == WireFormat::kTensor && unit_.finite == nullptr &&
         unit_.plan.bytes >= Engine::kLeastMovedBytes;
}

void StagedUnit::run_moved(int lane, DeviceMover& mover) const {
  const Reduction reduction = reduction_of(unit_);
  mover.begin(copies_in(0), copies_out(0, 0), reduction.dtype, first_.request().prescale);
  unit_.communicator->engine->all_reduce_moved(
      lane, unit_.plan.bytes / size_of(reduction.dtype), reduction, mover);
}

/// As a unit of tensors in host memory that lie one after another.
void StagedUnit::run_packed(int lane, std::byte* host, PackBuffer& buffer) const {
  Unit unit;
  unit.communicator = unit_.communicator;
  unit.plan = unit_.plan;
  unit.seed = unit_.seed;
  // Adasum has weights for every tensor; for others the packed tensors are as good as one.
  const bool apart = first_.request().op == ReduceOp::kAdasum && kind_ == OpKind::kAllreduce;
  if (!apart) {
    unit.plan.slices.resize(1);
    unit.plan.slices.front().bytes = unit_.plan.bytes;
  }
  std::byte* residuals = stages_residuals() ? host + residual_offset() : nullptr;
  std::vector<std::unique_ptr<Operation>> stand_ins;
  for (std::size_t i = 0; i < unit_.pieces.size(); ++i) {
    const std::size_t bytes = unit_.plan.slices[i].bytes;
    const Piece& piece = unit_.pieces[i];
    if (piece.buffers().input == nullptr) {
      std::memset(host, 0, bytes);  // zeros of a rank that has joined
    }
    if (apart || i == 0) {
      stand_ins.push_back(std::make_unique<Operation>());
      Operation& stand_in = *stand_ins.back();
      stand_in.request = piece.request();
      static_cast<TensorSpec&>(stand_in.request) = piece.spec();
      stand_in.input = host;
      stand_in.output = host;
      stand_in.residual = residuals;
      unit.pieces.push_back({&stand_in, 0});
      unit.plan.slices[i].offset = 0;
    }
    host += bytes;
    if (residuals != nullptr) {
      if (piece.buffers().residual == nullptr) {
        std::memset(residuals, 0, bytes);
      }
      residuals += bytes;
    }
  }
  execute_unit(unit, lane, buffer);
}

void StagedUnit::run_scattered(int lane, std::byte* host, PackBuffer& buffer) const {
  Operation stand_in;
  stand_in.request = first_.request();
  static_cast<TensorSpec&>(stand_in.request) = first_.spec();
  stand_in.input = host;
  stand_in.output = host + output_offset(0);
  Unit unit;
  unit.communicator = unit_.communicator;
  unit.plan = unit_.plan;
  unit.pieces.push_back({&stand_in, 0});
  execute_unit(unit, lane, buffer);
}

}  // namespace aiacc
