#include "csrc/core/execution/gpu/staged_unit.h"

#include <cstring>
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

std::size_t sum(const PerRank& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::size_t{0});
}

void add_copy(std::vector<StagedCopy>& copies,
              const void* device,
              std::size_t host_offset,
              std::size_t bytes) {
  if (device != nullptr && bytes > 0) {
    copies.push_back({number(device), host_offset, bytes});
  }
}

}  // namespace

StagedUnit::StagedUnit(const Unit& unit) : unit_(unit), kind_(unit.request().kind) {
  if (gathers()) {
    received_ = received_bytes(unit);
    sent_ =
        kind_ == OpKind::kAlltoall ? sent_bytes(unit) : PerRank{unit.pieces.front().spec().bytes()};
    steps_ = staging_chunks(unit.plan.bytes);
    return;
  }
  find_memory(unit, slices_);
  if (feeds_back(slices_)) {
    residual_offset_ = aligned(unit.plan.bytes);
  }
}

std::size_t StagedUnit::gathered_bytes() const { return sum(received_); }

/// What a step moves of every part.
PerRank StagedUnit::sizes(const PerRank& parts, std::size_t step) const {
  PerRank bytes;
  bytes.reserve(parts.size());
  for (const std::size_t part : parts) {
    bytes.push_back(staging_chunk(part, steps_, step).bytes);
  }
  return bytes;
}

/// Where the results of a step begin; in place unless the operation cannot work so.
std::size_t StagedUnit::output_offset(std::size_t step) const {
  if (gathers()) {
    return aligned(sum(sizes(sent_, step)));
  }
  return kind_ == OpKind::kReducescatter ? aligned(unit_.plan.bytes) : 0;
}

std::size_t StagedUnit::host_bytes(std::size_t step) const {
  const std::size_t output =
      gathers() ? sum(sizes(received_, step)) : residual_offset_ + unit_.plan.bytes;
  return aligned(output_offset(step) + output);
}

std::vector<StagedCopy> StagedUnit::copies_of(const PerRank& parts,
                                              std::size_t step,
                                              std::uintptr_t device,
                                              std::size_t host_offset) const {
  std::vector<StagedCopy> copies;
  for (const std::size_t bytes : parts) {
    const ByteRange range = staging_chunk(bytes, steps_, step);
    if (range.bytes > 0) {
      copies.push_back({device + range.begin, host_offset, range.bytes});
    }
    device += bytes;
    host_offset += range.bytes;
  }
  return copies;
}

std::vector<StagedCopy> StagedUnit::copies_in(std::size_t step) const {
  if (gathers()) {
    return copies_of(sent_, step, number(unit_.pieces.front().buffers().input), 0);
  }
  std::vector<StagedCopy> copies;
  for (const SliceMemory& slice : slices_) {
    if (kind_ != OpKind::kBroadcast || unit_.is_root()) {
      add_copy(copies, slice.input, slice.offset, slice.bytes);
      add_copy(copies, slice.residual, residual_offset_ + slice.offset, slice.bytes);
    }
  }
  return copies;
}

std::vector<StagedCopy> StagedUnit::copies_out(std::size_t step, std::uintptr_t gathered) const {
  if (gathers()) {
    return copies_of(received_, step, gathered, output_offset(step));
  }
  const bool has_result = kind_ == OpKind::kBroadcast && unit_.is_root();
  std::vector<StagedCopy> copies;
  for (const SliceMemory& slice : slices_) {
    std::size_t bytes = slice.bytes;
    if (kind_ == OpKind::kReducescatter) {
      const PerRank counts = scattered_elements(unit_);
      bytes = counts[static_cast<std::size_t>(unit_.communicator->rank)] * size_of(unit_.dtype());
    }
    if (!has_result || slice.input != slice.output) {
      add_copy(copies, slice.output, output_offset(step) + slice.offset, bytes);
      add_copy(copies, slice.residual, residual_offset_ + slice.offset, bytes);
    }
  }
  return copies;
}

void StagedUnit::run(std::size_t step, int lane, std::byte* host, PackBuffer& buffer) const {
  Engine& engine = *unit_.communicator->engine;
  std::byte* output = host + output_offset(step);
  if (kind_ == OpKind::kAllgather) {
    return engine.all_gather(lane, host, output, sizes(received_, step));
  }
  if (kind_ == OpKind::kAlltoall) {
    return engine.all_to_all(lane, host, output, sizes(sent_, step), sizes(received_, step));
  }
  std::vector<SliceMemory> slices = slices_;
  for (SliceMemory& slice : slices) {
    std::byte* input = host + slice.offset;
    if (slice.input == nullptr) {
      std::memset(input, 0, slice.bytes);  // zeros of a rank that has joined
    }
    std::byte* residual = residual_offset_ == 0 ? nullptr : input + residual_offset_;
    if (residual != nullptr && slice.residual == nullptr) {
      std::memset(residual, 0, slice.bytes);
    }
    slice = {input, output + slice.offset, residual, slice.offset, slice.bytes};
  }
  if (unit_.finite != nullptr) {
    unit_.finite->inspect(unit_, slices);
  }
  // Adasum has weights for every tensor; for others the packed tensors are as good as one.
  if (unit_.request().op != ReduceOp::kAdasum) {
    slices.resize(1);
    slices.front().bytes = unit_.plan.bytes;
  }
  execute_slices(unit_, slices, lane, buffer);
}

bool StagedUnit::fits_slots() const {
  return kind_ == OpKind::kAllreduce && unit_.request().op != ReduceOp::kAdasum &&
         unit_.request().wire == WireFormat::kTensor && unit_.finite == nullptr &&
         unit_.plan.bytes >= Engine::kLeastMovedBytes;
}

void StagedUnit::run_moved(int lane, DeviceMover& mover) const {
  const Reduction reduction = reduction_of(unit_);
  mover.begin(copies_in(0), copies_out(0, 0), reduction.dtype, unit_.request().prescale);
  unit_.communicator->engine->all_reduce_moved(lane, unit_.elements(), reduction, mover);
}

}  // namespace aiacc
